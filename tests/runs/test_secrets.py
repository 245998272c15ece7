"""Secrets never get into a text that is kept or shown, and nothing else is touched."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import dspy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scripted import Shouting
from tgrpo_dspy.records import Failure, Rollout
from tgrpo_dspy.runs.secrets import Secrets, looks_secret, no_secrets

SECRET = "correct/horse battery+42"


def known(*values: str) -> Secrets:
    return Secrets(frozenset(values))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"api_key": SECRET},
        {"headers": {"Authorization": SECRET}},
        {"extra_headers": {"x-api-key": SECRET}},
        {"extra_body": {"auth": [{"client_secret": SECRET}]}},
        {"aws_secret_access_key": SECRET},
        {"vertex_credentials": {"type": "service_account", "private_key": SECRET}},
        {"api_keys": ["short", SECRET]},
        {"api_key": pydantic.SecretStr(SECRET)},
        {"api_base": f"https://user:{quote(SECRET, safe='')}@host/v1"},
        {"api_base": f"https://{quote(SECRET, safe='')}@host/v1"},
        {"base_url": f"https://host/v1?version=2024-10-10-preview&key={quote(SECRET)}"},
    ],
)
def test_the_secrets_of_an_lm_are_masked(kwargs: dict[str, Any]) -> None:
    secrets = Secrets.of([dspy.LM("openai/gpt-4o"), dspy.LM("openai/gpt-4o", **kwargs)], environ={})
    assert secrets.mask(f"401: {SECRET}!") == "401: ***!"
    for written in (quote(SECRET), quote(SECRET, safe=""), json.dumps(SECRET), repr(SECRET)):
        assert "battery" not in secrets.mask(written)
    other = "a service_account at https://host/v1, version 2024-10-10-preview"
    assert secrets.mask(other) == other


def test_attributes_of_an_lm_and_of_its_engine_are_looked_at() -> None:
    lm = Shouting().lm()
    lm.access_token, lm.engine.password = "token-of-the-lm", "word-of-the-engine"
    assert Secrets.of([lm], environ={}).mask("token-of-the-lm word-of-the-engine") == "*** ***"


@pytest.mark.parametrize("scheme", ["Bearer", "basic", "Token"])
def test_what_follows_the_scheme_of_a_header_is_masked_alone_too(scheme: str) -> None:
    secrets = Secrets.of([dspy.LM("openai/gpt-4o", headers={"Authorization": f"{scheme} dXNlcjpwYXNz"})], environ={})
    assert secrets.mask("dXNlcjpwYXNz was refused") == "*** was refused"


def test_what_an_lm_answered_is_no_secret() -> None:
    lm = Shouting().lm()
    lm.history.append({"outputs": [{"token": "an-answer-1"}]})
    assert Secrets.of([lm], environ={}) == no_secrets


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "TOKEN_2",
        "MY_SECRET",
        "DB_PASSWORD",
        "PGPASSWORD",
        "GOOGLE_CREDENTIALS",
        "X_KEY_1",
    ],
)
def test_secrets_of_the_environment_are_masked(name: str) -> None:
    assert Secrets.of([], environ={name: SECRET}).mask(f"<{SECRET}>") == "<***>"
    assert Secrets.of([], environ={name: "/wJalrXUtnFEMI/K7MDENG"}).mask("/wJalrXUtnFEMI/K7MDENG") == "***"


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    assert Secrets.of([]).mask(SECRET) == "***"
    assert Secrets.of([], environ={}).mask(SECRET) == SECRET


def test_a_password_in_any_address_of_the_environment_is_masked() -> None:
    secrets = Secrets.of([], environ={"DATABASE_URL": "postgres://me:long-password@host/db"})
    assert secrets.mask("login as me with long-password at host/db failed") == "login as me with *** at host/db failed"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SSH_KEY_FILE", "/usr/share/nothing/there"),
        ("SSH_KEY_FILE", "~/.ssh/id_rsa"),
        ("SECRET_DIR", "./secrets/all"),
        ("KEY_SIZE", "123456789"),
        ("TOKEN_RATE", "0.123456789"),
        ("USE_TOKEN", "true"),
        ("API_KEY", "short"),
        ("API_KEY", "********"),
        ("API_KEY", ""),
        ("TOKENIZERS_PARALLELISM", "disabled"),
        ("KEYBOARD_LAYOUT", "dvorak-international"),
        ("MAX_TOKENS", "unlimited"),
        ("HOME", "/usr/share/nothing/there"),
        ("SOME_ADDRESS", "https://host/path?page=everything"),
    ],
)
def test_harmless_variables_of_the_environment_are_not(name: str, value: str) -> None:
    assert Secrets.of([], environ={name: value}) == no_secrets


SHAPES = [
    "sk-proj-Abcdefghijklmnop1234",
    "sk-ant-api03-abcdefghijklmnop",
    "Bearer abcdefgh1234",
    "bearer abcdefghijklmnopqrstuvwxyz",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0123456789_abcdefghijk",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "gsk_abcdefghijklmnopqrstuvwxyz0123456789",
    "AIzaSyA-abcdefghijklmnopqrstuvwxyz01234",
    "xoxb-1234567890-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc-123_XYZ",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", SHAPES)
def test_well_known_shapes_are_masked_although_nobody_named_them(secret: str) -> None:
    assert no_secrets.mask(f"sent '{secret}', refused") == "sent '***', refused"
    assert known(SECRET).mask(f"{SECRET}: {secret}") == "***: ***"


def test_user_and_password_in_an_address_are_masked() -> None:
    assert no_secrets.mask("GET http://me:pw@host:80/x") == "GET http://***@host:80/x"


@pytest.mark.parametrize(
    "text",
    [
        "use sk-learn-compatible-estimators for a task-management-and-scheduling-system",
        "the bearer instruments of a standard bearer certificate",
        "at https://host:8080/path, or mail me@host",
        "a basketball, a hf_ prefix, AKIA, ghp_short, eyJ.x.y",
        "",
    ],
)
def test_ordinary_texts_stay_as_they_are(text: str) -> None:
    assert no_secrets.mask(text) is text
    assert known(SECRET).mask(text) is text


def test_empty_and_tiny_values_mask_nothing() -> None:
    assert known("", "a", "***").mask("a***b") == "a***b"


def test_the_longest_secret_goes_first() -> None:
    assert known("password", "password-extended", "extended-and-more").mask("password-extended") == "***"


def test_what_a_mask_has_put_together_is_masked_too() -> None:
    assert "abcdefg*" not in known("abcdefg*").mask("abcdefgabcdefg*")


@given(st.text(min_size=8).filter(lambda s: "***" not in s), st.text(), st.text(), st.integers(1, 3))
def test_a_secret_never_survives(secret: str, before: str, after: str, times: int) -> None:
    secrets = known(secret, "another-secret")
    text = before + secret * times + after
    assert secret not in secrets.mask(text)
    assert secret not in secrets.mask(text + "another-secret" + before)
    assert secrets.mask(secrets.mask(text)) == secrets.mask(text)


@given(st.text(alphabet="abcdefgh-. ", min_size=0), st.text(alphabet="ABCDEFGH0123/+", min_size=8))
def test_nothing_but_the_secret_is_touched(around: str, secret: str) -> None:
    assert known(secret).mask(f"{around} {secret} {around}") == f"{around} *** {around}"


Pair = namedtuple("Pair", "name value")


@dataclass(frozen=True)
class Note:
    text: str
    more: Any = None


def test_nested_values_are_masked() -> None:
    s = known(SECRET)
    assert s.mask_in([1, SECRET, [None, (f"<{SECRET}>", 2.5)]]) == [1, "***", [None, ("<***>", 2.5)]]
    assert s.mask_in({"a": {SECRET: [SECRET]}, 1: "b"}) == {"a": {"***": ["***"]}, 1: "b"}
    assert s.mask_in(MappingProxyType({"a": SECRET})) == {"a": "***"}
    assert s.mask_in(Pair("x", SECRET)).value == "***"
    assert s.mask_in(Note("x", Note(SECRET, (SECRET,)))) == Note("x", Note("***", ("***",)))


def test_a_record_of_a_failed_rollout_is_masked() -> None:
    failure = Failure(kind="lm", error="LMAuthError", message=f"bad key {SECRET}", partial={"answer": SECRET})
    rollout = Rollout(number=1, outputs={"answer": "fine"}, failure=failure)
    masked = known(SECRET).mask_in(rollout)
    assert masked.failure == Failure(kind="lm", error="LMAuthError", message="bad key ***", partial={"answer": "***"})
    assert (masked.number, masked.outputs, rollout.failure) == (1, {"answer": "fine"}, failure)


@pytest.mark.parametrize("value", [[1, ["a"]], {"a": ("b",)}, Note("x", [Pair(1, 2)]), Pair("a", "b"), "text", 1, None])
def test_what_holds_no_secret_comes_back_itself(value: Any) -> None:
    assert known(SECRET).mask_in(value) is value


def test_secrets_do_not_show_themselves() -> None:
    secrets = known(SECRET)
    secrets.mask("x")
    assert "battery" not in f"{secrets!r} {secrets}"


def test_names_that_say_secret() -> None:
    yes = ("key", "apiKey", "X-API-Key", "auth", "password", "db_passwd", "client_secret", "session_token", "APIKEY")
    no = ("max_tokens", "tokenizer", "keyboard", "author", "monkey", "temperature", "bypass", "model")
    assert [name for name in (*yes, *no) if looks_secret(name)] == list(yes)
