"""Topic questions: what something is and why it matters, in several phrasings each."""

from __future__ import annotations

from dataclasses import dataclass

from stages.corpus.examples import Example, Language, Phrasing, fill, in_language, phrasings, select, spaced
from stages.corpus.phrases import topics_code, topics_learning, topics_science
from stages.corpus.seeded import seeded_choice, seeded_sample

WHAT = phrasings(
    zh="""
    什麼是{x}？
    {x}是什麼？
    解釋{x}
    請解釋{x}
    解釋一下{x}
    請說明什麼是{x}
    談談{x}
    介紹{x}
    請介紹一下{x}
    {x}是什麼意思？
    簡單說明{x}
    用一句話解釋{x}
    你知道{x}嗎？
    我想了解{x}
    """,
    en="""
    What is {x}?
    Explain {x}
    Please explain {x}
    What does {x} mean?
    Tell me about {x}
    Describe {x}
    Define {x}
    Explain {x} in one sentence
    Do you know what {x} is?
    I want to learn about {x}
    Can you explain {x}?
    Give a short explanation of {x}
    """,
    zh_heldout="""
    請問什麼是{x}？
    請用一句話解釋{x}
    請簡單說明{x}
    """,
    en_heldout="""
    Please tell me about {x}
    Please describe {x}
    Can you tell me what {x} is?
    """,
)
WHY = phrasings(
    zh="""
    {x}為什麼重要？
    為什麼{x}很重要？
    {x}有什麼用？
    {x}有什麼意義？
    為什麼要了解{x}？
    了解{x}有什麼好處？
    為什麼要學{x}？
    說說{x}的重要性
    """,
    en="""
    Why does {x} matter?
    Why is {x} important?
    Why should I care about {x}?
    What is the point of knowing about {x}?
    Why do people study {x}?
    What makes {x} important?
    """,
    zh_heldout="""
    請問{x}為什麼重要？
    請說說{x}的重要性
    """,
    en_heldout="""
    Tell me why {x} matters
    Please explain why {x} is important
    """,
)
HELDOUT_EACH = 20
"""Held-out prompts of each question in each language."""


@dataclass(frozen=True)
class Topic:
    """One topic: each field is (traditional Chinese, English); `*…*` marks a sentence's keyword."""

    name: tuple[str, str]
    what: tuple[str, str]
    why: tuple[str, str]


def topics() -> list[Topic]:
    """All topics, in file order."""
    text = "\n".join(module.TEXT.strip() + "\n" for module in (topics_learning, topics_code, topics_science))
    return [Topic(*(_pair(line) for line in block.splitlines())) for block in text.strip().split("\n\n")]


def _pair(line: str) -> tuple[str, str]:
    zh, en = line.split(" | ")
    return zh.strip(), en.strip()


def examples() -> list[Example]:
    """Training and held-out examples of both questions on all topics."""
    made: list[Example] = []
    for language in Language:
        for question, options in (("what", WHAT), ("why", WHY)):
            heldout = seeded_sample(topics(), HELDOUT_EACH, f"topics {question} {language}")
            unseen = select(options, language, True)
            for topic in topics():
                made += [_example(topic, question, p) for p in select(options, language, False)]
                if topic in heldout:
                    phrasing = seeded_choice(unseen, f"{question} {topic.name[1]}")
                    made.append(_example(topic, question, phrasing))
    return made


def _example(topic: Topic, question: str, phrasing: Phrasing) -> Example:
    name = in_language(phrasing.language, *topic.name)
    text = in_language(phrasing.language, *(topic.what if question == "what" else topic.why))
    _, keyword, _ = text.split("*")
    prompt = fill(phrasing.template, name, x=spaced(phrasing.template, name))
    return Example("topics", phrasing.language, prompt, text.replace("*", ""), phrasing.heldout, keyword)
