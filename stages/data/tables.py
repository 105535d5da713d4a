"""Skills learned as tables: translation both ways, antonyms, capitals, what comes next, colours, kinds.

Every value stands in training under several phrasings; held out are pairs of value and phrasing, and whole phrasings.
"""

from __future__ import annotations

from itertools import pairwise

from stages.data import chance, lexicon
from stages.data.samples import Lang, Phrasing, Sample, fill, in_lang, phrasings

EN_TO_ZH = phrasings(
    zh="""
    {x} 的中文是什麼？
    {x} 用中文怎麼說？
    英文 {x} 是什麼意思？
    請把 {x} 翻譯成中文
    把英文單字 {x} 翻成中文
    {x} 中文
    {x} 翻成中文是？
    """,
    en="""
    Translate {x} into Chinese
    How do you say {x} in Chinese?
    What is {x} in Chinese?
    What is the Chinese word for {x}?
    {x} in Chinese
    Chinese for {x}
    """,
    zh_heldout="""
    請問 {x} 的中文是什麼？
    請把英文單字 {x} 翻成中文
    """,
    en_heldout="""
    Please translate {x} into Chinese
    Tell me the Chinese word for {x}
    """,
)
ZH_TO_EN = phrasings(
    zh="""
    {x}的英文是什麼？
    {x}用英文怎麼說？
    請把「{x}」翻譯成英文
    把{x}翻成英文
    {x} 英文
    {x}的英文單字是？
    「{x}」翻成英文是？
    """,
    en="""
    Translate {x} into English
    How do you say {x} in English?
    What is {x} in English?
    What is the English word for {x}?
    {x} in English
    English for {x}
    """,
    zh_heldout="""
    請問{x}的英文是什麼？
    請把{x}翻成英文
    """,
    en_heldout="""
    Please translate {x} into English
    Tell me the English word for {x}
    """,
)
ANTONYM = phrasings(
    zh="""
    「{x}」的反義詞是什麼？
    {x}的反義詞是？
    {x}的相反詞是什麼？
    與「{x}」相反的詞是什麼？
    {x}的相反是什麼？
    請說出「{x}」的反義詞
    {x}的反面是什麼？
    """,
    en="""
    What is the opposite of {x}?
    What is the antonym of {x}?
    Opposite of {x}
    Antonym of {x}
    Give the opposite of {x}
    Which word is the opposite of {x}?
    The opposite of {x} is?
    Name an antonym of {x}
    """,
    zh_heldout="""
    請問{x}的反義詞是什麼？
    請說出{x}的相反詞
    """,
    en_heldout="""
    Tell me the opposite of {x}
    Please give the antonym of {x}
    Give an antonym of {x}
    """,
)
CAPITAL = phrasings(
    zh="""
    {x}的首都是哪裡？
    {x}的首都是什麼？
    {x}首都在哪裡？
    哪個城市是{x}的首都？
    {x}的首都叫什麼？
    請說出{x}的首都
    """,
    en="""
    What is the capital of {x}?
    Capital of {x}
    Which city is the capital of {x}?
    Name the capital of {x}
    The capital of {x} is?
    What is the capital city of {x}?
    """,
    zh_heldout="""
    請問{x}的首都是哪裡？
    請問哪個城市是{x}的首都？
    """,
    en_heldout="""
    Tell me the capital of {x}
    Please name the capital of {x}
    """,
)
NEXT = phrasings(
    zh="""
    {x}的下一個是什麼？
    {x}之後是什麼？
    {x}後面是什麼？
    {x}的後面接什麼？
    接在{x}後面的是什麼？
    {x}接下來是什麼？
    """,
    en="""
    What comes after {x}?
    What comes next after {x}?
    What follows {x}?
    Next after {x}
    {x} is followed by what?
    """,
    zh_heldout="""
    請問{x}的下一個是什麼？
    請問{x}之後是什麼？
    """,
    en_heldout="""
    Tell me what comes after {x}
    Please say what follows {x}
    """,
)
COLOR = phrasings(
    zh="""
    {x}是什麼顏色？
    {x}通常是什麼顏色？
    {x}的顏色是什麼？
    {x}是什麼顏色的？
    說出{x}的顏色
    """,
    en="""
    What color is {x}?
    What is the color of {x}?
    What color is {x} usually?
    The color of {x} is?
    Name the color of {x}
    """,
    zh_heldout="""
    請問{x}是什麼顏色？
    請說出{x}的顏色
    """,
    en_heldout="""
    Tell me the color of {x}
    Please name the color of {x}
    """,
)
KIND = phrasings(
    zh="""
    {x}屬於哪一類？
    {x}是哪一類東西？
    {x}屬於什麼類別？
    請幫{x}分類
    {x}的類別是什麼？
    """,
    en="""
    What kind of thing is {x}?
    Which category does {x} belong to?
    What is the category of {x}?
    Classify {x}
    What category is {x}?
    """,
    zh_heldout="""
    請問{x}屬於哪一類？
    請問{x}的類別是什麼？
    """,
    en_heldout="""
    Tell me the category of {x}
    Please classify {x}
    """,
)

HELDOUT_PER_LANG = 20
"""Held-out samples of each table skill in each language, half of them with unseen phrasings."""

Values = dict[Lang, list[tuple[str, str]]]
"""What stands in the slot → the answer, for each language of the prompt."""


def samples() -> list[Sample]:
    """Training and held-out samples of all table skills."""
    nouns = lexicon.nouns()
    kinds = [(en, zh, kind, lexicon.KINDS[kind]) for en, zh, kind in nouns if kind]
    made = _table("en_to_zh", EN_TO_ZH, 4, {lang: [(en, _script(lang, zh)) for en, zh, _ in nouns] for lang in Lang})
    made += _table("zh_to_en", ZH_TO_EN, 4, {lang: [(_script(lang, zh), en) for en, zh, _ in nouns] for lang in Lang})
    made += _table("antonym", ANTONYM, 5, _antonyms())
    made += _table("capital", CAPITAL, 5, _columns(lexicon.capitals()))
    made += _table("sequence", NEXT, 3, _sequences())
    made += _table("color", COLOR, 5, _columns(lexicon.colors()))
    made += _table("category", KIND, 4, _columns(kinds))
    return made


def _script(lang: Lang, zh: str) -> str:
    """Chinese in the script of the prompt; English prompts get the traditional one."""
    return in_lang(lang, zh, zh)


def _columns(rows: list[tuple[str, str, str, str]]) -> Values:
    """From rows of (slot in English, in Chinese, answer in English, in Chinese)."""
    return {lang: [(in_lang(lang, x_zh, x_en), in_lang(lang, y_zh, y_en)) for x_en, x_zh, y_en, y_zh in rows] for lang in Lang}


def _antonyms() -> Values:
    values: Values = {}
    for lang in Lang:
        pairs = lexicon.antonyms_en() if lang is Lang.EN else lexicon.antonyms_zh()
        both = [*pairs, *((second, first) for first, second in pairs)]
        values[lang] = [(in_lang(lang, first, first), in_lang(lang, second, second)) for first, second in both]
    return values


def _sequences() -> Values:
    values: Values = {}
    letters = [chr(ord("A") + i) for i in range(26)]
    for lang in Lang:
        weekdays = lexicon.WEEKDAYS_EN if lang is Lang.EN else lexicon.WEEKDAYS_ZH
        months = lexicon.MONTHS_EN if lang is Lang.EN else lexicon.MONTHS_ZH
        circles = [pair for names in (weekdays, months) for pair in zip(names, (*names[1:], names[0]), strict=True)]
        line = list(pairwise(letters)) + [(str(i), str(i + 1)) for i in range(100)]
        values[lang] = circles + line
    return values


def _table(group: str, options: tuple[Phrasing, ...], per_value: int, values: Values) -> list[Sample]:
    """Each value under `per_value` phrasings of each language, and held-out samples of that language."""
    made: list[Sample] = []
    for lang in Lang:
        known = [p for p in options if p.lang is lang and not p.heldout]
        unseen = [p for p in options if p.lang is lang and p.heldout]
        tested = chance.sample(values[lang], HELDOUT_PER_LANG, f"{group} {lang} tested")
        for position, (x, y) in enumerate(tested):
            new = position % 2 == 1
            phrasing = chance.pick(unseen, f"{group} {x}") if new else chance.shuffled(known, f"{group} {lang} {x}")[-1]
            made.append(Sample(group, lang, fill(phrasing.template, f"{group} {x}", x=x), y, heldout=True))
        for x, y in values[lang]:
            for phrasing in chance.shuffled(known, f"{group} {lang} {x}")[:per_value]:
                made.append(Sample(group, lang, fill(phrasing.template, f"{group} {x}", x=x), y))
    return made
