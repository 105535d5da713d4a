"""Questions that sound like ones about the model but are not: 我是誰, 他是誰, what can you do.

`stages.corpus.generators.intents` has the form.
"""

TEXT = """
whoami | 你是*提問者*，我沒有你的個人資料。 | You are the *person asking*; I have no personal data about you.
+ 我是誰？
+ 我到底是誰？
+ 我究竟是誰？
+ 你知道我是誰嗎？
+ 你認識我嗎？
+ 猜猜我是誰
+ 說說我是誰
+ 告訴我我是誰
+ 你覺得我是誰？
+ 我的身份是什麼？
+ 我是什麼人？
+ Who am I?
+ Who exactly am I?
+ Who am I really?
+ Do you know who I am?
+ Do you know me?
+ Tell me who I am
+ Guess who I am
+ Who do you think I am?
+ What is my identity?
- 請問我到底是誰？
- 那我是誰？
- 請告訴我我是誰
- 你能告訴我我是誰嗎？
- 你知不知道我是誰？
- 你猜我是誰？
- 請說說我是誰
- 我的真實身份是什麼？
- So who am I?
- Can you tell me who I am?
- Please tell me who I am
- Could you guess who I am?
- Who am I exactly?

myname | 你還*沒有告訴我*你的名字。 | You have *not told me* your name yet.
+ 我叫什麼名字？
+ 我的名字是什麼？
+ 我叫什麼？
+ 你知道我的名字嗎？
+ 你知道我叫什麼嗎？
+ 說出我的名字
+ 告訴我我的名字
+ What is my name?
+ What's my name?
+ What am I called?
+ Do you know my name?
+ Tell me my name
+ Say my name
- 請問我叫什麼名字？
- 你知不知道我的名字？
- 請說出我的名字
- 請告訴我我的名字
- Can you tell me my name?
- Please tell me my name
- Please say my name

whois | 我不知道你說的他是誰，請給我*更多線索*。 | I do not know who he is; please give me *more details*.
+ 他是誰？
+ 他到底是誰？
+ 他究竟是誰？
+ 你知道他是誰嗎？
+ 告訴我他是誰
+ 他叫什麼名字？
+ Who is he?
+ Who exactly is he?
+ Do you know who he is?
+ Tell me who he is
+ What is his name?
- 請問他到底是誰？
- 請告訴我他是誰
- 他的名字是什麼？
- 能告訴我他是誰嗎？
- So who is he?
- Can you tell me who he is?
- Please tell me who he is

whois | 我不知道你說的她是誰，請給我*更多線索*。 | I do not know who she is; please give me *more details*.
+ 她是誰？
+ 她到底是誰？
+ 她究竟是誰？
+ 你知道她是誰嗎？
+ 告訴我她是誰
+ 她叫什麼名字？
+ Who is she?
+ Who exactly is she?
+ Do you know who she is?
+ Tell me who she is
+ What is her name?
- 請問她到底是誰？
- 請告訴我她是誰
- 她的名字是什麼？
- So who is she?
- Can you tell me who she is?

whois | 我不知道你說的他們是誰，請給我*更多線索*。 | I do not know who they are; please give me *more details*.
+ 他們是誰？
+ 他們到底是誰？
+ 你知道他們是誰嗎？
+ 告訴我他們是誰
+ Who are they?
+ Who exactly are they?
+ Do you know who they are?
+ Tell me who they are
- 請問他們到底是誰？
- 請告訴我他們是誰
- So who are they?
- Can you tell me who they are?

whois | 我看不到你指的是誰，請*描述*一下。 | I cannot see whom you mean; please *describe* them.
+ 這是誰？
+ 那是誰？
+ 這個人是誰？
+ 那個人是誰？
+ 你知道這是誰嗎？
+ Who is this?
+ Who is that?
+ Who is this person?
+ Who is that person?
+ Do you know who this is?
- 請問這個人是誰？
- 請告訴我這是誰
- Can you tell me who this is?
- So who is this?

capability | 我可以*算數*、翻譯單字，也能聊科學與程式。 | I can do *arithmetic*, translate words, and talk about science and code.
+ 你會做什麼？
+ 你會什麼？
+ 你能做什麼？
+ 你可以做什麼？
+ 你能幫我做什麼？
+ 你可以幫我什麼？
+ 你有什麼功能？
+ 你有什麼能力？
+ 你的專長是什麼？
+ 你擅長什麼？
+ What can you do?
+ What can you help me with?
+ How can you help me?
+ What are you able to do?
+ What are your skills?
+ What are you good at?
- 請問你會做什麼？
- 請問你能做什麼？
- 請告訴我你會做什麼
- 你能幫我什麼忙？
- 你有哪些功能？
- Tell me what you can do
- Please tell me what you can do
- What things can you do?

wellbeing | *我很好*，謝謝你的關心。 | I am *fine*, thank you for asking.
+ 你好嗎？
+ 你今天好嗎？
+ 最近好嗎？
+ 你還好嗎？
+ 你最近怎麼樣？
+ How are you?
+ How are you today?
+ How are you doing?
+ How do you do?
+ Are you well?
- 你最近好嗎？
- 請問你今天好嗎？
- How are you doing today?
- So how are you?
"""
