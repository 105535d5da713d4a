"""Who made what, and who was who: tables, and the templates of the questions."""

from __future__ import annotations

from stages.corpus.examples import phrasings

MAKERS = """
發明 | invented | 電話 / the telephone / 貝爾 / Alexander Graham Bell
發明 | invented | 電燈泡 / the light bulb / 愛迪生 / Thomas Edison
發明 | invented | 飛機 / the airplane / 萊特兄弟 / the Wright brothers
發明 | invented | 全球資訊網 / the World Wide Web / 伯納斯李 / Tim Berners-Lee
發明 | invented | 電報 / the telegraph / 摩斯 / Samuel Morse
發明 | invented | 炸藥 / dynamite / 諾貝爾 / Alfred Nobel
發明 | invented | 造紙術 / papermaking / 蔡倫 / Cai Lun
發明 | invented | 避雷針 / the lightning rod / 富蘭克林 / Benjamin Franklin
發明 | invented | 電池 / the battery / 伏打 / Alessandro Volta
發現 | discovered | X 光 / X-rays / 倫琴 / Wilhelm Roentgen
發現 | discovered | 盤尼西林 / penicillin / 弗萊明 / Alexander Fleming
發現 | discovered | 鐳 / radium / 居里夫人 / Marie Curie
發現 | discovered | 萬有引力 / universal gravitation / 牛頓 / Isaac Newton
發現 | discovered | 電子 / the electron / 湯姆森 / J. J. Thomson
提出 | proposed | 狹義相對論 / special relativity / 愛因斯坦 / Albert Einstein
提出 | proposed | 天擇說 / natural selection / 達爾文 / Charles Darwin
提出 | proposed | 元素週期表 / the periodic table / 門得列夫 / Dmitri Mendeleev
提出 | proposed | 地動說 / heliocentrism / 哥白尼 / Nicolaus Copernicus
創造 | created | F# / F# / Don Syme / Don Syme
創造 | created | C# / C# / Anders Hejlsberg / Anders Hejlsberg
創造 | created | Python / Python / Guido van Rossum / Guido van Rossum
創造 | created | Java / Java / James Gosling / James Gosling
創造 | created | C++ / C++ / Bjarne Stroustrup / Bjarne Stroustrup
創造 | created | Ruby / Ruby / 松本行弘 / Yukihiro Matsumoto
創造 | created | JavaScript / JavaScript / Brendan Eich / Brendan Eich
創造 | created | Rust / Rust / Graydon Hoare / Graydon Hoare
創造 | created | Scala / Scala / Martin Odersky / Martin Odersky
創造 | created | Lisp / Lisp / John McCarthy / John McCarthy
開發 | developed | Linux / Linux / Linus Torvalds / Linus Torvalds
開發 | developed | Git / Git / Linus Torvalds / Linus Torvalds
開發 | developed | PyTorch / PyTorch / Meta / Meta
開發 | developed | Unix / Unix / Ken Thompson / Ken Thompson
開發 | developed | TeX / TeX / Donald Knuth / Donald Knuth
創立 | founded | 微軟 / Microsoft / 比爾蓋茲 / Bill Gates
創立 | founded | 蘋果公司 / Apple / 賈伯斯 / Steve Jobs
創立 | founded | 亞馬遜 / Amazon / 貝佐斯 / Jeff Bezos
創立 | founded | 臉書 / Facebook / 祖克柏 / Mark Zuckerberg
創立 | founded | 台積電 / TSMC / 張忠謀 / Morris Chang
"""
"""Verb, thing and the person best known for it, each in traditional Chinese and English."""

PEOPLE = """
愛因斯坦 | Albert Einstein | *物理學家*，提出了相對論 | a *physicist* who proposed relativity
牛頓 | Isaac Newton | *物理學家*，提出了運動定律 | a *physicist* who stated the laws of motion
居里夫人 | Marie Curie | *科學家*，研究了放射性 | a *scientist* who studied radioactivity
達爾文 | Charles Darwin | *生物學家*，提出了天擇說 | a *biologist* who proposed natural selection
圖靈 | Alan Turing | *數學家*，奠定了計算理論 | a *mathematician* who founded the theory of computing
莎士比亞 | Shakespeare | *劇作家*，寫了哈姆雷特 | a *playwright* who wrote Hamlet
達文西 | Leonardo da Vinci | *畫家*，畫了蒙娜麗莎 | a *painter* who painted the Mona Lisa
貝多芬 | Beethoven | *作曲家*，寫了第九號交響曲 | a *composer* who wrote the Ninth Symphony
莫札特 | Mozart | *作曲家*，寫了魔笛 | a *composer* who wrote The Magic Flute
孔子 | Confucius | *思想家*，創立了儒家 | a *thinker* who founded Confucianism
李白 | Li Bai | *詩人*，生活在唐代 | a *poet* of the Tang dynasty
曹雪芹 | Cao Xueqin | *小說家*，寫了紅樓夢 | a *novelist* who wrote Dream of the Red Chamber
哥倫布 | Columbus | *航海家*，到達了美洲 | a *navigator* who reached the Americas
伽利略 | Galileo | *天文學家*，用望遠鏡觀察木星 | an *astronomer* who observed Jupiter with a telescope
梵谷 | Vincent van Gogh | *畫家*，畫了星夜 | a *painter* who painted The Starry Night
阿姆斯壯 | Neil Armstrong | *太空人*，第一個踏上月球 | an *astronaut* who first walked on the Moon
霍金 | Stephen Hawking | *物理學家*，研究了黑洞 | a *physicist* who studied black holes
柏拉圖 | Plato | *哲學家*，寫了理想國 | a *philosopher* who wrote The Republic
"""
"""Name and description, each in traditional Chinese and English; `*…*` marks the keyword."""

MAKER_QUESTIONS = phrasings(
    zh="""
    誰{verb}了{x}？
    {x}是誰{verb}的？
    是誰{verb}了{x}？
    {verb}{x}的人是誰？
    你知道誰{verb}了{x}嗎？
    告訴我誰{verb}了{x}
    """,
    en="""
    Who {verb} {x}?
    Do you know who {verb} {x}?
    Tell me who {verb} {x}
    Which person {verb} {x}?
    {x}: who {verb} it?
    """,
    zh_heldout="""
    請問{x}是誰{verb}的？
    請告訴我誰{verb}了{x}
    """,
    en_heldout="""
    Can you tell me who {verb} {x}?
    Please tell me who {verb} {x}
    """,
)
PERSON_QUESTIONS = phrasings(
    zh="""
    {x}是誰？
    誰是{x}？
    介紹一下{x}
    你知道{x}是誰嗎？
    {x}是什麼人？
    告訴我{x}是誰
    """,
    en="""
    Who is {x}?
    Who was {x}?
    Do you know who {x} is?
    Tell me who {x} was
    Say who {x} is
    """,
    zh_heldout="""
    請問{x}是誰？
    請告訴我{x}是誰
    """,
    en_heldout="""
    Please tell me who {x} was
    Can you tell me who {x} is?
    """,
)
