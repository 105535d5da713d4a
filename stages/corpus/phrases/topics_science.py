"""Science topics: three lines a topic: its name, what it is, why it matters; Chinese | English; `*…*` marks
the keyword.
"""

TEXT = """
光合作用 | photosynthesis
光合作用是植物用陽光把水和二氧化碳變成養分與*氧氣*。 | Photosynthesis is how plants make food and *oxygen* with sunlight.
它供應了大部分生物的食物和*氧氣*。 | It provides food and *oxygen* for most living things.

重力 | gravity
重力是有*質量*的物體互相吸引的力。 | Gravity is the pull between objects that have *mass*.
沒有重力，行星就不會繞著*太陽*轉。 | Without gravity, planets would not orbit the *Sun*.

黑洞 | a black hole
黑洞的引力強到連*光*都逃不出來。 | A black hole has gravity so strong that even *light* cannot escape.
黑洞讓我們檢驗*重力*理論的極限。 | It lets us test the limits of our theory of *gravity*.

原子 | an atom
原子由原子核和繞著它的*電子*組成，是元素的最小單位。 | An atom is a nucleus with *electrons* around it, the smallest unit of an element.
所有*物質*都由原子構成。 | All *matter* is made of atoms.

DNA | DNA
DNA 是帶有遺傳資訊的*雙螺旋*分子。 | DNA is a *double helix* molecule that carries genetic information.
它告訴細胞怎麼製造*蛋白質*。 | It tells cells how to build *proteins*.

演化 | evolution
演化是生物族群的特徵經過許多*世代*逐漸改變。 | Evolution is the change of traits in a population over many *generations*.
它解釋了*物種*為何如此多樣。 | It explains why there are so many *species*.

相對論 | relativity
相對論說明時間和空間會隨著*速度*與重力而改變。 | Relativity says that time and space change with *speed* and gravity.
衛星*定位*必須依它修正時間。 | Satellite *navigation* must correct its clocks by it.

量子力學 | quantum mechanics
量子力學用機率描述*微觀*粒子的行為。 | Quantum mechanics describes *tiny* particles by means of probability.
*半導體*和雷射都建立在它之上。 | *Semiconductors* and lasers are built on it.

光速 | the speed of light
光速約為每秒*三十萬*公里。 | The speed of light is about *300,000* kilometers per second.
它是訊息傳遞的最高*速度*。 | It is the highest *speed* at which information can travel.

大霹靂 | the Big Bang
大霹靂理論認為*宇宙*從極熱極密的狀態膨脹而來。 | The Big Bang theory says that the *universe* expanded from a hot, dense state.
它解釋了宇宙為何正在*膨脹*。 | It explains why space is *expanding*.

疫苗 | a vaccine
疫苗讓身體事先學會辨認*病原體*。 | A vaccine teaches the body to recognize a *germ* in advance.
它能降低*重症*和傳播的機會。 | It lowers the risk of severe *illness*.

細胞 | a cell
細胞是*生命*的基本單位。 | A cell is the basic unit of *life*.
了解細胞才能了解*疾病*如何發生。 | Knowing cells helps us know how *disease* begins.

電流 | electric current
電流是*電荷*的流動。 | Electric current is the flow of *charge*.
它為燈光、馬達和電腦提供*能量*。 | It brings *energy* to lights, motors and computers.

磁鐵 | a magnet
磁鐵會產生磁場，能吸引*鐵*。 | A magnet makes a magnetic field and attracts *iron*.
*馬達*和發電機都需要磁鐵。 | *Motors* and generators need magnets.

水循環 | the water cycle
水循環是水*蒸發*、凝結成雲再降下的過程。 | The water cycle is water that *evaporates*, forms clouds and falls again.
它不斷補充陸地上的*淡水*。 | It keeps refilling the *fresh water* on land.

板塊運動 | plate tectonics
板塊運動是地球*地殼*的大塊岩板緩慢移動。 | Plate tectonics is the slow motion of large plates of the Earth's *crust*.
它造成*地震*、火山和山脈。 | It causes *earthquakes*, volcanoes and mountains.

臭氧層 | the ozone layer
臭氧層是平流層中吸收*紫外線*的氣體層。 | The ozone layer is gas in the stratosphere that absorbs *ultraviolet* light.
它保護生物不受強烈*紫外線*傷害。 | It protects life from strong *ultraviolet* light.

氣候變遷 | climate change
氣候變遷是長期的*氣溫*和天氣型態的改變。 | Climate change is a long-term shift in *temperature* and weather patterns.
它會讓*極端*天氣更常發生。 | It makes *extreme* weather more common.

潮汐 | a tide
潮汐是海水因*月球*和太陽的引力而漲落。 | A tide is the rise and fall of the sea caused by the pull of the *Moon* and the Sun.
潮汐影響*航行*，也能用來發電。 | Tides affect *shipping* and can produce power.

日食 | a solar eclipse
日食是*月球*擋住了太陽的光。 | A solar eclipse happens when the *Moon* blocks the light of the Sun.
科學家藉日食觀察太陽的*日冕*。 | It lets scientists observe the *corona* of the Sun.

行星 | a planet
行星是繞著*恆星*運行的大型天體。 | A planet is a large body that orbits a *star*.
研究行星能幫助我們了解*地球*的起源。 | Studying planets helps us learn how the *Earth* formed.

銀河系 | the Milky Way
銀河系是包含*太陽系*的螺旋星系。 | The Milky Way is the spiral galaxy that contains our *solar system*.
它讓我們知道自己在*宇宙*中的位置。 | It shows us our place in the *universe*.

能量守恆 | conservation of energy
能量守恆是指能量不會消失，只會*轉換*形式。 | Conservation of energy means that energy is never lost, it only *changes* form.
它告訴我們*永動機*不可能存在。 | It tells us that a *perpetual motion* machine cannot exist.

聲音 | sound
聲音是物體*振動*在介質中傳遞的波。 | Sound is a wave made by *vibration* that travels through matter.
它讓我們能*溝通*，也能用來探測海底。 | It lets us *communicate* and explore the sea floor.

彩虹 | a rainbow
彩虹是陽光在*水滴*中折射和反射而成。 | A rainbow forms when sunlight bends and reflects in *water drops*.
它顯示白光由許多*顏色*組成。 | It shows that white light is made of many *colors*.

火山 | a volcano
火山是*岩漿*從地下噴出的地方。 | A volcano is a place where *magma* rises from below the ground.
火山灰能讓土壤*肥沃*，但爆發也很危險。 | Its ash makes soil *fertile*, but eruptions are dangerous.

科學方法 | the scientific method
科學方法是提出*假設*，再用實驗檢驗。 | The scientific method is to form a *hypothesis* and test it by experiment.
它讓別人能*重現*並檢查結果。 | It lets others *repeat* and check the results.

抗生素 | an antibiotic
抗生素是能殺死*細菌*或阻止它生長的藥物。 | An antibiotic is a drug that kills *bacteria* or stops their growth.
它能治療細菌*感染*，但對病毒無效。 | It treats bacterial *infections* but not viruses.
"""
