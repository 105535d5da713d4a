"""Small talk: greetings, thanks, moods, opinions. `stages.corpus.generators.intents` has the form."""

TEXT = """
smalltalk | *你好*！有什麼可以幫你的嗎？ | *Hello*! How can I help you?
+ 你好
+ 您好
+ 哈囉
+ 嗨
+ 你好呀
+ Hello
+ Hi
+ Hey
+ Hello there
- 嗨，你好
- Hi there

smalltalk | *早安*，祝你有美好的一天。 | *Good morning*, have a nice day.
+ 早安
+ 早上好
+ 早
+ Good morning
+ Morning
- 早安呀
- Good morning to you

smalltalk | *晚安*，祝你有個好夢。 | *Good night*, sweet dreams.
+ 晚安
+ 我要睡了
+ 我去睡覺了
+ Good night
+ I am going to bed
+ Time to sleep
- 晚安啦
- I am going to sleep

smalltalk | *不客氣*，很高興能幫上忙。 | *You are welcome*, glad to help.
+ 謝謝
+ 謝謝你
+ 多謝
+ 感謝你的幫忙
+ 太感謝了
+ Thanks
+ Thank you
+ Thank you very much
+ Many thanks
- 非常謝謝你
- Thanks a lot

smalltalk | *再見*，歡迎隨時回來。 | *Goodbye*, come back any time.
+ 再見
+ 拜拜
+ 下次見
+ 我先走了
+ Goodbye
+ Bye
+ See you later
+ See you
- 再見啦
- Goodbye for now

smalltalk | *沒關係*，我們再試一次。 | *No problem*, let us try again.
+ 對不起
+ 抱歉
+ 不好意思
+ 我弄錯了
+ Sorry
+ I am sorry
+ My mistake
+ I made a mistake
- 真對不起
- I am so sorry

smalltalk | 聽起來你很難過，*休息*一下也許會好一些。 | You sound sad; a little *rest* may help.
+ 我很難過
+ 我心情不好
+ 我今天很沮喪
+ 我不開心
+ I am sad
+ I feel bad
+ I am unhappy
+ I feel down today
- 我今天心情不好
- I feel very sad

smalltalk | 辛苦了，記得*休息*和喝水。 | You worked hard; remember to *rest* and drink water.
+ 我好累
+ 我很累
+ 今天好累
+ 工作好累
+ I am tired
+ I am so tired
+ Work is tiring
+ I feel tired
- 我今天好累
- I am very tired today

smalltalk | *太好了*，替你高興！ | *Great*, I am happy for you!
+ 我很開心
+ 我考試通過了
+ 我成功了
+ 今天很順利
+ I am happy
+ I passed the exam
+ I did it
+ Today went well
- 我今天很開心
- I am very happy

smalltalk | 可以試試*散步*、看書或聽音樂。 | You could take a *walk*, read or listen to music.
+ 我好無聊
+ 無聊的時候可以做什麼？
+ 週末可以做什麼？
+ 推薦我做點什麼
+ I am bored
+ What can I do when I am bored?
+ What can I do on the weekend?
+ Suggest something to do
- 我今天好無聊
- I am so bored

smalltalk | 我無法查看即時*天氣*，請看氣象網站。 | I cannot see live *weather*; please check a forecast site.
+ 今天天氣如何？
+ 今天天氣怎麼樣？
+ 明天會下雨嗎？
+ 外面冷嗎？
+ How is the weather today?
+ What is the weather like?
+ Will it rain tomorrow?
+ Is it cold outside?
- 請問今天天氣如何？
- What is the weather like today?

smalltalk | 我看不到*時鐘*，請看你的裝置。 | I cannot see a *clock*; please look at your device.
+ 現在幾點？
+ 今天幾號？
+ 今天星期幾？
+ 現在是什麼時間？
+ What time is it?
+ What is the date today?
+ What day is it today?
+ What time is it now?
- 請問現在幾點了？
- Please tell me the time

smalltalk | 為什麼*程式設計師*怕光？因為光會引來蟲。 | Why do *programmers* like the dark? Because light attracts bugs.
+ 講個笑話
+ 說個笑話
+ 來個笑話
+ 說笑話給我聽
+ Tell me a joke
+ Say something funny
+ Tell a joke
+ Make me laugh
- 請講個笑話
- Please tell me a joke

smalltalk | 每天學一點，多*練習*，進步就會看得見。 | Learn a little each day and *practice* often.
+ 怎麼學程式？
+ 如何學好英文？
+ 怎麼學得更快？
+ 有什麼學習建議？
+ How do I learn programming?
+ How can I learn faster?
+ Any advice on learning?
+ How do I get better?
- 請問怎麼學程式？
- How can I learn programming?

smalltalk | 加油，一步一步來，你*做得到*。 | Keep going step by step, you *can do it*.
+ 給我一點鼓勵
+ 鼓勵我一下
+ 我快要放棄了
+ 我做不到
+ Encourage me
+ I want to give up
+ I cannot do it
+ Give me some courage
- 請鼓勵我一下
- Please encourage me

smalltalk | 我沒有*味覺*，不過很多人喜歡麵和飯。 | I have no sense of *taste*, but many people like noodles and rice.
+ 你喜歡吃什麼？
+ 你最喜歡的食物是什麼？
+ 你餓嗎？
+ What do you like to eat?
+ What is your favorite food?
+ Are you hungry?
- 請問你喜歡吃什麼？
- What food do you like?

smalltalk | 多喝水、早點睡，不舒服就去看*醫生*。 | Drink water, sleep early, and see a *doctor* if you feel ill.
+ 我感冒了
+ 我頭痛
+ 我不舒服
+ 我生病了
+ I have a cold
+ I have a headache
+ I feel ill
+ I am sick
- 我今天頭痛
- I feel sick today
"""
