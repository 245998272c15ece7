"""The program: an agent that searches and reads pages before it answers."""

from __future__ import annotations

import dspy

from programs.react import forgiving_react
from programs.web_search.search import SearchEngine
from programs.web_search.tools import Reader, page_tool, search_tool


class AnswerFromTheWeb(dspy.Signature):
    """Answer the question from web pages. The answer is the name, number or code alone."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def agent(engine: SearchEngine, reader: Reader, *, max_iters: int = 6, page_chars: int = 2500) -> dspy.Module:
    """A fresh student.

    Args:
        engine: what `search` asks.
        reader: what `open_page` reads with.
        max_iters: how often it may act.
        page_chars: characters of a page that it is shown at once.
    """
    tools = [search_tool(engine), page_tool(reader, page_chars=page_chars)]
    return forgiving_react(AnswerFromTheWeb, tools, max_iters=max_iters)
