"""The prompt templates of the skills learned as tables; `stages.corpus.generators.tables` fills them."""

from __future__ import annotations

from stages.corpus.examples import phrasings

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
    請問{x}的相反詞是什麼？
    請問{x}的反面是什麼？
    請說出{x}的反面
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
