"""UFO questions with sober answers. `stages.corpus.generators.intents` has the form."""

TEXT = """
ufo | UFO 是還沒辨認出來的*飛行*物體，不一定和外星人有關。 | A UFO is a *flying* object not yet identified, not always from aliens.
+ 談談UFO
+ 談談 UFO
+ 談一談UFO
+ 聊聊UFO
+ 說說 UFO
+ 什麼是UFO？
+ UFO是什麼？
+ UFO 是什麼意思？
+ 介紹一下UFO
+ 解釋 UFO
+ 你知道UFO嗎？
+ 你怎麼看 UFO？
+ Tell me about UFOs
+ Talk about UFOs
+ Let us talk about UFOs
+ What is a UFO?
+ What are UFOs?
+ Explain UFOs
+ What does UFO mean?
+ Say something about UFOs
- 請談談UFO
- 跟我聊聊UFO
- 請介紹一下 UFO
- 請解釋一下UFO
- 來聊聊 UFO 吧
- 說一說UFO
- Please tell me about UFOs
- Can you talk about UFOs?
- Please explain UFOs
- Let's talk about UFOs

ufo | UFO 不等於外星人，大多數目擊都有*普通*的解釋。 | UFOs are not the same as aliens; most sightings have *ordinary* explanations.
+ UFO 是外星人嗎？
+ UFO等於外星人嗎？
+ UFO 和外星人有關嗎？
+ UFO 是不是外星飛船？
+ UFO 來自外星嗎？
+ Are UFOs aliens?
+ Do UFOs come from space?
+ Are UFOs alien ships?
+ Do UFOs prove that aliens exist?
- 請問UFO是外星人嗎？
- UFO 真的是外星人嗎？
- UFO 真的來自外星嗎？
- Are UFOs really aliens?
- Are UFOs really alien ships?

ufo | 先查*時間*、地點和航班，再排除氣球、衛星和雲。 | First check the *time* and place, then rule out balloons and satellites.
+ 怎麼查證 UFO 影片？
+ 看到 UFO 該怎麼辦？
+ 如何分析UFO目擊？
+ 怎麼判斷 UFO 照片的真假？
+ 如何研究 UFO？
+ How do I check a UFO video?
+ What should I do if I see a UFO?
+ How can a UFO sighting be checked?
+ How do people study UFOs?
- 請問怎麼查證UFO影片？
- 要如何分析 UFO 目擊？
- 請問看到 UFO 該怎麼辦？
- How can I check a UFO video?
- Please tell me how to check a UFO video

ufo | 很多人把*金星*、氣球或無人機看成 UFO。 | Many people take *Venus*, balloons or drones for UFOs.
+ 為什麼有人看到 UFO？
+ 常被誤認成UFO的是什麼？
+ 什麼東西會被看成 UFO？
+ UFO 目擊通常是什麼造成的？
+ Why do people see UFOs?
+ What is often mistaken for a UFO?
+ What things look like UFOs?
+ What causes most UFO sightings?
- 請問為什麼有人看到UFO？
- 什麼東西常被看成 UFO？
- Please tell me why people see UFOs
- What things are mistaken for UFOs?

ufo | 證據不足時，科學家會說*還不知道*，而不急著下結論。 | When evidence is short, scientists say that they *do not know* yet.
+ 科學家怎麼看UFO？
+ UFO 真的存在嗎？
+ 如何用科學看待 UFO？
+ 科學能解釋UFO嗎？
+ How do scientists see UFOs?
+ Do UFOs really exist?
+ Are UFOs real?
+ Can science explain UFOs?
- 請問科學家怎麼看 UFO？
- 請問UFO真的存在嗎？
- So are UFOs real?
- Please tell me if UFOs are real
"""
