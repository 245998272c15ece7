// Builds the page from the data in it. Texts of models and data become text nodes and never markup.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const groups = new Map(data.groups.map((group, place) => [group.id, { ...group, place }]));
const PAGE = 60;

function node(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    made.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return made;
}
const h = (tag, attributes, ...children) => node(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => node(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const short = (value) => (value === null ? "none" : String(Math.round(value * 1000) / 1000));
const count = (value) => value.toLocaleString("en-US");
const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
const target = (name) => name && h("span", { class: "tag" }, `for ${name}`);
const id = (name) => h("span", { class: "id" }, name);

/** A section of the page with a link to it; nothing when it has no content. */
function section(name, title, ...content) {
  const filled = content.flat(Infinity).filter(Boolean);
  if (!filled.length) return;
  document.getElementById("contents").append(h("a", { href: `#${name}` }, title));
  document.getElementById("main").append(h("section", { "aria-labelledby": name }, h("h2", { id: name, tabindex: "-1" }, title), filled));
}

/** Details whose content is made when they are opened. */
function lazy(summary, make, open = false, name = null) {
  const inside = h("div", { class: "inside" });
  let made = false;
  const fill = () => { if (!made && details.open) { made = true; inside.append(...[make()].flat(Infinity).filter(Boolean)); } };
  const details = h("details", { toggle: fill, open, id: name }, h("summary", {}, summary), inside);
  fill();
  return details;
}

/** A list of which more is shown on demand. */
function paged(list, items, render, size = PAGE) {
  let shown = 0;
  const more = h("button", { type: "button", click: () => grow(true) });
  const box = h("div", {}, list, more);
  function grow(byHand) {
    const fresh = items.slice(shown, shown + size).map(render);
    list.append(...fresh);
    shown += fresh.length;
    more.hidden = shown >= items.length;
    more.textContent = `Show ${count(Math.min(size, items.length - shown))} of ${count(items.length - shown)} more`;
    if (byHand && fresh.length) (fresh[0].querySelector("a") || more).focus();
  }
  grow(false);
  return box;
}

function table(head, rows, textColumns = []) {
  const kind = (place) => (textColumns.includes(place) ? "text" : null);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, h("table", {},
    h("thead", {}, h("tr", {}, head.map((title, place) => h("th", { scope: "col", class: kind(place) }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => h("td", { class: kind(place) }, cell)))))));
}

const fields = (values) => {
  const rows = Object.entries(values || {});
  return rows.length ? h("dl", { class: "fields" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])) : null;
};

// Scores over the steps

const rewardsOf = (group) => group.attempts.filter((attempt) => attempt.reward !== null).map((attempt) => attempt.reward);
let low = 0, high = 1;
for (const group of data.groups) for (const reward of rewardsOf(group)) { low = Math.min(low, reward); high = Math.max(high, reward); }

function chart(width) {
  const points = data.scores, height = 230, left = 44, right = 14, top = 14, bottom = 34;
  const values = points.flatMap((p) => [p.reward, p.score === null ? null : p.score - (p.error || 0), p.score === null ? null : p.score + (p.error || 0)])
    .filter((value) => value !== null);
  const least = Math.min(0, ...values), most = Math.max(values.some((value) => value > 0.2) || !values.length ? 1 : 0.2, ...values);
  const steps = points.map((p) => p.step), first = Math.min(...steps), last = Math.max(...steps);
  const x = (step) => left + 10 + (last === first ? 0.5 : (step - first) / (last - first)) * (width - left - right - 20);
  const y = (value) => top + (1 - (value - least) / (most - least)) * (height - top - bottom);
  const path = (known, read) => known.map((p, place) => `${place ? "L" : "M"}${x(p.step)} ${y(read(p))}`).join("");
  const scored = points.filter((p) => p.score !== null), rewarded = points.filter((p) => p.reward !== null);
  const every = Math.ceil(points.length / Math.max(2, Math.floor((width - left) / 44)));
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Validation score and mean reward by step; the table below has the numbers" },
    [0, 0.25, 0.5, 0.75, 1].map((part) => least + part * (most - least)).map((value) => [
      s("path", { class: "axis", d: `M${left} ${y(value)}H${width - right}` }),
      s("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(2))]),
    points.filter((_, place) => place % every === 0).map((p) =>
      s("text", { x: x(p.step), y: height - 14, "text-anchor": "middle" }, p.step === 0 ? (width < 500 ? "0" : "student") : p.step)),
    s("path", { class: "reward", d: path(rewarded, (p) => p.reward) }),
    rewarded.map((p) => s("circle", { class: "reward-dot", cx: x(p.step), cy: y(p.reward), r: 3 })),
    s("path", { class: "line", d: path(scored.filter((p) => p.accepted), (p) => p.score) }),
    scored.map((p) => [
      p.error && s("path", { class: "bar", d: `M${x(p.step)} ${y(p.score - p.error)}V${y(p.score + p.error)}` }),
      s("circle", { class: p.accepted ? "score" : "score rejected", cx: x(p.step), cy: y(p.score), r: 4 },
        s("title", {}, `step ${p.step}: ${p.shown[0]}`)),
      p.step === data.best_step && s("circle", { class: "best", cx: x(p.step), cy: y(p.score), r: 8 })]));
}

function scores() {
  if (!data.scores.length) return [];
  const place = h("div"), draw = () => place.replaceChildren(chart(Math.max(260, Math.min(900, document.getElementById("main").clientWidth))));
  draw();
  addEventListener("resize", draw);
  return [h("figure", {}, place, h("figcaption", {},
    "Line: validation score ± standard error; hollow: rolled back; ring: returned. Dotted: mean reward of the step's rollouts.")),
    lazy("Numbers", () => table(["step", "validation score", "mean reward", ""], data.scores.map((p) =>
      [p.step || "student", p.shown[0] || "–", p.shown[1] || "–",
        p.step === data.best_step ? "returned" : p.accepted ? "" : "rolled back"])))];
}

// Groups and their attempts

/** The rewards of a group as dots on the scale of the run, equal ones on top of each other. */
function dots(group) {
  const scored = group.attempts.filter((attempt) => attempt.reward !== null).sort((a, b) => a.reward - b.reward);
  const at = (reward) => 6 + (high > low ? (reward - low) / (high - low) : 0.5) * 98, stacks = new Map();
  const places = scored.map((attempt) => { const x = Math.round(at(attempt.reward)), up = stacks.get(x) || 0; stacks.set(x, up + 1); return [x, up, attempt]; });
  const rise = Math.min(7, 28 / Math.max(1, ...stacks.values()));
  return s("svg", { width: 110, height: 38, viewBox: "0 0 110 38", role: "img", "aria-label": `rewards ${scored.map((a) => short(a.reward)).join(", ") || "none"}` },
    s("path", { class: "axis", d: "M2 35H108" }),
    places.map(([x, up, attempt]) => s("circle", { class: attempt.failure ? "dot failed" : "dot", cx: x, cy: 31 - up * rise, r: 3 })));
}

function preview(group) {
  const values = Object.values(group.inputs);
  const turn = group.attempts.map((attempt) => attempt.turns[0]).find(Boolean);
  return (values.length ? values : turn ? Object.values(turn.inputs) : [group.key]).join(" · ").slice(0, 200);
}

const stage = (group) => (group.stage === "learning" ? `step ${group.step}` : `validation, ${group.step ? `step ${group.step}` : "student"}`);

const tile = (group) => h("li", {}, h("a", { href: `#${encodeURIComponent(group.id)}` },
  dots(group), h("span", {}, h("span", { class: "preview" }, preview(group)), h("span", { class: "soft small" }, stage(group)))));
const tiles = (members) => paged(h("ul", { class: "tiles" }), members, tile);

function turn(called, place) {
  return h("div", { class: `turn ${called.kind}` },
    h("h4", {}, `${place + 1}. ${called.kind === "tool" ? "tool " : ""}${called.name}`),
    fields(called.inputs), h("div", { "aria-label": "result" }, fields(called.outputs)));
}

function failure(failed) {
  return h("div", { class: "failure" }, h("strong", { class: "bad" }, `Failure: ${failed.kind}`), h("p", {}, `${failed.error}: ${failed.message}`),
    failed.missing.length > 0 && h("p", {}, `Missing fields: ${failed.missing.join(", ")}`),
    Object.keys(failed.partial).length > 0 && [h("h4", {}, "Fields that were there"), fields(failed.partial)],
    failed.completion && [h("h4", {}, "What the model wrote"), h("pre", { tabindex: "0" }, failed.completion)]);
}

function attempt(made) {
  const tools = made.turns.filter((called) => called.kind === "tool").length;
  return h("article", { class: "attempt" },
    h("h3", {}, h("span", {}, `Attempt ${made.number + 1}`),
      h("span", { class: made.reward === null || made.failure ? "bad" : made.reward >= high ? "good" : null }, made.reward === null ? "not scored" : `reward ${short(made.reward)}`)),
    fields(made.outputs),
    made.failure && failure(made.failure),
    made.feedback && [h("h4", {}, "Feedback"), h("div", { class: "feedback" }, made.feedback)],
    made.left_out.length > 0 && h("p", { class: "small" }, `Ran without ${made.left_out.join(", ")} (trial).`),
    made.turns.length > 0 && lazy(`${plural(made.turns.length, "turn")}${tools ? `, ${tools} of tools` : ""}`, () => made.turns.map(turn), tools > 0 && innerWidth > 640),
    h("p", { class: "soft small" }, `${made.seconds.toFixed(1)} s`));
}

const dialog = document.getElementById("group");
let opener = null;

function show(group) {
  const near = (by) => data.groups[group.place + by];
  const step = (by, label) => h("button", { type: "button", disabled: !near(by), click: () => location.replace(`#${encodeURIComponent(near(by).id)}`) }, label);
  dialog.replaceChildren(
    h("header", {}, h("h2", { id: "group-title", tabindex: "-1" }, `Group of example ${group.key}, ${stage(group)}`),
      h("div", { class: "controls" }, h("button", { type: "button", click: () => dialog.close() }, "Close"), step(-1, "Previous"), step(1, "Next"), dots(group))),
    Object.keys(group.inputs).length > 0 && h("div", { class: "beside" },
      h("section", {}, h("h3", {}, "Inputs"), fields(group.inputs)),
      Object.keys(group.labels).length > 0 ? h("section", {}, h("h3", {}, "Right answer"), fields(group.labels)) : ""),
    h("h3", {}, plural(group.attempts.length, "attempt")),
    paged(h("div", { class: "beside" }), group.attempts, attempt, 20));
  if (!dialog.open) { opener = document.activeElement; dialog.showModal(); }
  dialog.scrollTop = 0;
  document.getElementById("group-title").focus();
}

function named() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

function follow() {
  const wanted = named();
  const group = groups.get(wanted);
  if (group) show(group);
  else if (dialog.open) dialog.close();
  const place = document.getElementById(wanted);
  if (group || !place) return;
  if (place.tagName === "DETAILS") place.open = true;
  place.scrollIntoView();
}
dialog.addEventListener("close", () => {
  if (groups.has(named())) history.replaceState(null, "", "#groups");
  opener?.focus?.();
});

function browser() {
  if (!data.groups.length) return [];
  const stages = [...new Set(data.groups.map(stage))], place = h("div"), told = h("span", { class: "soft", role: "status" });
  const where = h("select", { change: draw, "aria-label": "Which groups" }, h("option", { value: "" }, "All groups"), stages.map((name) => h("option", { value: name }, name)));
  const which = h("select", { change: draw, "aria-label": "What they are like" },
    [["", "of any kind"], ["differ", "whose rewards differ"], ["failed", "with failures"]].map(([value, title]) => h("option", { value }, title)));
  function draw() {
    const chosen = data.groups.filter((group) => {
      const rewards = rewardsOf(group);
      return (!where.value || stage(group) === where.value) && (which.value !== "differ" || Math.max(...rewards) > Math.min(...rewards))
        && (which.value !== "failed" || group.attempts.some((made) => made.failure));
    });
    told.textContent = plural(chosen.length, "group");
    place.replaceChildren(tiles(chosen));
  }
  draw();
  return [h("p", { class: "soft small" }, `A dot is an attempt, from reward ${short(low)} on the left to ${short(high)} on the right; red: it failed.`),
    h("div", { class: "controls" }, where, which, told), place];
}

// The library and what the steps made of it

const words = (pieces) => pieces.map(([mark, text]) => [mark === "=" ? text : h(mark === "+" ? "ins" : "del", {}, text), " "]);
const edit = (made) => [h("span", { class: "tag" }, made.operation), made.ids.length > 0 && id(made.ids.join(" ")), target(made.target), made.text];
const plainList = (items, render) => paged(h("ul", { class: "plain" }), items, render, 40);
const titled = (title, items, render) => (items.length ? [h("h3", {}, title), plainList(items, render)] : []);

function experience(e) {
  const known = e.evidence.filter((piece) => typeof piece === "string"), strange = e.evidence.filter((piece) => typeof piece !== "string");
  const where = e.created === 0 ? "from before this run" : `created in step ${e.created}`;
  return lazy([id(e.id), e.text, " ", target(e.target), e.effect && h("span", { class: "tag" }, `effect ${e.effect}`)], () => [
    h("p", {}, `${where[0].toUpperCase()}${where.slice(1)}${e.changed > e.created ? `, last changed in step ${e.changed}` : ""}; proposed ${plural(e.proposed, "time")}`,
      e.contradicted > 0 && `, contradicted ${plural(e.contradicted, "time")}`, e.effect ? `; measured effect ${e.effect}.` : "; its effect was not measured."),
    known.length > 0 && [h("h3", {}, `Drawn from ${plural(known.length, "group")}`), tiles(known.map((name) => groups.get(name)))],
    strange.length > 0 && [h("h3", {}, "Drawn from groups of other runs"),
      plainList(strange, (piece) => h("li", {}, `example ${piece.key}: rewards ${piece.rewards.map(short).join(", ")}`))]], false, `experience-${e.id}`);
}

function step(record) {
  const label = h("span", {}, h("strong", {}, `Step ${record.step}`), " ",
    h("span", { class: record.accepted ? "tag good" : "tag bad" }, record.accepted ? "accepted" : "rolled back"),
    record.step === data.best_step && h("span", { class: "tag good" }, "returned"),
    h("span", { class: "soft" }, `reward ${record.reward}${record.score && `, score ${record.score}`}, ${record.changes.length ? plural(record.changes.length, "change") : "no change"}`));
  return lazy(label, () => [
    h("p", {}, `Epoch ${record.epoch}. ${record.informative} of ${plural(record.groups, "group")} informative`, record.lost > 0 && `, ${record.lost} lost in reflection`,
      `. ${plural(record.size, "experience")} afterwards. ${plural(record.calls, "LM call")}, ${record.seconds}.`),
    record.verdict && h("p", {}, h("strong", {}, "Verdict: "), record.verdict),
    h("h3", {}, "The library"),
    record.changes.length ? plainList(record.changes, (change) => h("li", { class: change.kind },
      h("span", { class: "soft small" }, `${change.kind} `), id(change.id), target(change.target), words(change.words), change.why && h("span", { class: "soft small" }, `(${change.why})`)))
      : h("p", { class: "soft" }, "Unchanged."),
    titled(`Refused edits (${record.refused.length})`, record.refused, (made) => h("li", { class: "refused" }, edit(made), h("div", { class: "bad small" }, made.reason))),
    titled("Effects in the trial so far", record.effects, (e) => h("li", {}, id(e.id), e.text, " ", h("span", { class: "soft" }, e.effect))),
    record.applied.length > 0 && lazy(`Applied edits (${record.applied.length})`, () => plainList(record.applied, (made) => h("li", {}, edit(made)))),
    record.advantages.length > 0 && lazy(`Reflections and what they proposed (${record.advantages.length})`, () => plainList(record.advantages, (a) => h("li", {},
      h("p", {}, h("span", { class: "soft small" }, `${plural(a.groups, "group")}: `), a.lost ? h("span", { class: "bad" }, "no readable answer") : a.text),
      a.surplus > 0 && h("p", { class: "soft small" }, `${plural(a.surplus, "edit")} beyond the limit left out`),
      h("ul", { class: "plain" }, a.edits.map((made) => h("li", {}, edit(made))))))),
    lazy(`Groups (${record.groups})`, () => tiles(data.groups.filter((g) => g.stage === "learning" && g.step === record.step)))], false, `step-${record.step}`);
}

function failures() {
  const kinds = new Map();
  for (const group of data.groups) for (const made of group.attempts) if (made.failure) {
    if (!kinds.has(made.failure.kind)) kinds.set(made.failure.kind, []);
    kinds.get(made.failure.kind).push([group, made]);
  }
  return [...kinds].sort((a, b) => b[1].length - a[1].length).map(([kind, all]) => lazy([h("strong", {}, kind), ` ${plural(all.length, "attempt")}`], () =>
    plainList(all, ([group, made]) => h("li", { class: "refused" }, h("a", { href: `#${encodeURIComponent(group.id)}` }, `${stage(group)}, example ${group.key}, attempt ${made.number + 1}`),
      h("div", { class: "small" }, `${made.failure.error}: ${made.failure.message.slice(0, 300)}`)))));
}

function prompt(p) {
  const own = p.after.startsWith(p.base) ? p.after.slice(p.base.length).trimStart() : p.after;
  return lazy([h("strong", {}, p.name), h("span", { class: "soft" }, ` ${p.after === p.before ? "unchanged" : `${plural(p.before.length, "character")} before, ${count(p.after.length)} after`}`)], () =>
    h("div", { class: "beside" }, h("section", {}, h("h3", {}, "Before"), h("pre", { tabindex: "0" }, p.before || "not recorded: the run had no run_dir")),
      h("section", {}, h("h3", {}, "After"), h("pre", { tabindex: "0" }, p.base, p.base && own && "\n\n", own && h("ins", {}, own)))), data.prompts.length === 1);
}

document.title = `${data.title} · Training-Free GRPO`;
document.getElementById("title").textContent = data.title;
document.getElementById("main").append(
  h("dl", { class: "summary" }, data.summary.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
  ...data.notes.map((note) => h("p", { class: "soft small" }, note)));
section("scores", "Scores", scores());
section("library", "Library", data.library.length ? data.library.map(experience) : h("p", { class: "soft" }, "No experience: the student itself was returned, or nothing was learned."),
  titled("Pruned, for they do harm", data.pruned, (e) => h("li", { class: "removed" }, id(e.id), e.text, " ", h("span", { class: "soft" }, e.effect))));
section("steps", "Steps", data.steps.map(step));
section("groups", "Groups", browser());
section("failures", "Failures", failures());
section("exemplars", "Exemplars", data.exemplars.map((shown) => lazy([h("strong", {}, `example ${shown.example}`), h("span", { class: "soft" }, ` step ${shown.step}, ${shown.labelled ? "its label" : `reward ${short(shown.reward)}`}`)], () => [
  shown.calls.map((call) => h("pre", { tabindex: "0" }, call)),
  groups.has(`group-${shown.step}-${shown.example}`) && h("p", {}, h("a", { href: `#${encodeURIComponent(`group-${shown.step}-${shown.example}`)}` }, "Its group"))])));
section("choices", "Choices", data.choices.length > 0 && table(["candidate", "experiences", "exemplars", "validation score", "prompt tokens", ""], data.choices.map((c) =>
  [c.label, c.experiences, c.exemplars, c.score, count(c.prompt_tokens), c.chosen ? "chosen" : ""])));
section("cost", "Cost", table(["role", "LM calls", "cached", "failed", "tokens in", "tokens out", "cost"], data.usage.map((u) =>
  [u.role, count(u.calls), count(u.cached), count(u.failed), count(u.prompt_tokens), count(u.completion_tokens), u.cost])));
section("prompts", "Prompts", data.prompts.map(prompt));
section("settings", "Settings", Object.keys(data.settings).length > 0 && lazy("settings.json", () => h("pre", { tabindex: "0" }, JSON.stringify(data.settings, null, 1))));
addEventListener("hashchange", follow);
follow();
