"""Word tables of the skills: nouns with their kinds, antonyms, capitals, sequences, colours. Traditional
Chinese and English.
"""

from __future__ import annotations

KINDS = {
    "animal": "動物",
    "fruit": "水果",
    "vegetable": "蔬菜",
    "body part": "身體部位",
    "vehicle": "交通工具",
    "clothing": "衣物",
    "furniture": "家具",
    "instrument": "樂器",
}
"""Kind in English → in traditional Chinese."""

_NOUNS = """
animal: cat 貓, dog 狗, bird 鳥, fish 魚, horse 馬, cow 牛, sheep 羊, pig 豬, tiger 老虎, lion 獅子, bear 熊
animal: rabbit 兔子, monkey 猴子, elephant 大象, snake 蛇, mouse 老鼠, duck 鴨子, frog 青蛙, bee 蜜蜂, wolf 狼
animal: whale 鯨魚, butterfly 蝴蝶
fruit: apple 蘋果, banana 香蕉, grape 葡萄, orange 橘子, lemon 檸檬, peach 桃子, pear 梨子, strawberry 草莓
fruit: watermelon 西瓜, mango 芒果, pineapple 鳳梨, cherry 櫻桃
vegetable: carrot 胡蘿蔔, tomato 番茄, potato 馬鈴薯, onion 洋蔥, cabbage 高麗菜, corn 玉米, pumpkin 南瓜, cucumber 黃瓜
body part: hand 手, foot 腳, eye 眼睛, ear 耳朵, nose 鼻子, mouth 嘴巴, head 頭, heart 心臟, tooth 牙齒, hair 頭髮
body part: finger 手指, knee 膝蓋
vehicle: car 汽車, bus 公車, train 火車, ship 船, airplane 飛機, bicycle 腳踏車, truck 卡車, rocket 火箭
clothing: hat 帽子, shoe 鞋子, shirt 襯衫, coat 外套, glove 手套, sock 襪子, skirt 裙子, scarf 圍巾
furniture: table 桌子, chair 椅子, bed 床, sofa 沙發, desk 書桌, bookshelf 書架
instrument: piano 鋼琴, guitar 吉他, drum 鼓, violin 小提琴, flute 長笛
: sun 太陽, moon 月亮, star 星星, sky 天空, cloud 雲, rain 雨, snow 雪, wind 風, fire 火, water 水, mountain 山
: river 河流, sea 海, lake 湖, tree 樹, flower 花, grass 草, stone 石頭, sand 沙子, forest 森林, island 島
: book 書, pen 筆, paper 紙, door 門, window 窗戶, house 房子, key 鑰匙, clock 時鐘, lamp 燈, cup 杯子, knife 刀
: spoon 湯匙, bowl 碗, umbrella 雨傘, mirror 鏡子, camera 相機, computer 電腦, phone 電話, letter 信, map 地圖, bag 袋子
: box 盒子, money 錢, gold 黃金
: bread 麵包, rice 米飯, egg 雞蛋, milk 牛奶, tea 茶, coffee 咖啡, sugar 糖, salt 鹽, meat 肉, soup 湯, cake 蛋糕
: school 學校, hospital 醫院, city 城市, road 道路, bridge 橋, garden 花園, library 圖書館, station 車站, teacher 老師
: student 學生, doctor 醫生, friend 朋友, king 國王, child 孩子, music 音樂, language 語言, dream 夢, spring 春天
: summer 夏天, winter 冬天
"""

_ANTONYMS_ZH = """
大小 高低 長短 快慢 冷熱 黑白 多少 新舊 好壞 美醜 輕重 遠近 深淺 寬窄 厚薄 軟硬 乾濕 強弱 真假 早晚 開關 前後 左右 上下
內外 東西 南北 生死 買賣 進退 胖瘦 富窮 愛恨 哭笑 粗細 甜苦 動靜 明暗 勝敗 首尾 升降 始終 加減 出入 公私 正反 貴賤 朝夕
古今 攻守 安全-危險 簡單-複雜 成功-失敗 增加-減少 開始-結束 快樂-悲傷 勇敢-膽小 乾淨-骯髒 聰明-愚笨 安靜-吵鬧 容易-困難
便宜-昂貴 誠實-虛偽 謙虛-驕傲 勤勞-懶惰
"""

_ANTONYMS_EN = """
big-small hot-cold fast-slow tall-short good-bad new-old happy-sad light-heavy early-late rich-poor strong-weak
open-closed full-empty hard-soft wet-dry clean-dirty bright-dark thick-thin wide-narrow deep-shallow near-far up-down
left-right inside-outside before-after first-last win-lose buy-sell push-pull give-take love-hate laugh-cry true-false
day-night north-south east-west alive-dead safe-dangerous easy-difficult simple-complex quiet-loud brave-cowardly
smooth-rough sharp-blunt young-elderly cheap-expensive beautiful-ugly begin-end increase-decrease success-failure
question-answer friend-enemy always-never top-bottom front-back enter-exit arrive-leave remember-forget accept-refuse
"""

_CAPITALS = """
France 法國 Paris 巴黎, Japan 日本 Tokyo 東京, China 中國 Beijing 北京, Germany 德國 Berlin 柏林, Italy 義大利 Rome 羅馬
Spain 西班牙 Madrid 馬德里, Portugal 葡萄牙 Lisbon 里斯本, Russia 俄羅斯 Moscow 莫斯科, Greece 希臘 Athens 雅典
Egypt 埃及 Cairo 開羅, Thailand 泰國 Bangkok 曼谷, Vietnam 越南 Hanoi 河內, South_Korea 韓國 Seoul 首爾
Canada 加拿大 Ottawa 渥太華, Australia 澳洲 Canberra 坎培拉, Austria 奧地利 Vienna 維也納, Poland 波蘭 Warsaw 華沙
Sweden 瑞典 Stockholm 斯德哥爾摩, Norway 挪威 Oslo 奧斯陸, Finland 芬蘭 Helsinki 赫爾辛基
Denmark 丹麥 Copenhagen 哥本哈根, Ireland 愛爾蘭 Dublin 都柏林, Belgium 比利時 Brussels 布魯塞爾
Hungary 匈牙利 Budapest 布達佩斯, Turkey 土耳其 Ankara 安卡拉, Iran 伊朗 Tehran 德黑蘭, Iraq 伊拉克 Baghdad 巴格達
India 印度 New_Delhi 新德里, Nepal 尼泊爾 Kathmandu 加德滿都, Mongolia 蒙古 Ulaanbaatar 烏蘭巴托
Cuba 古巴 Havana 哈瓦那, Peru 秘魯 Lima 利馬, Chile 智利 Santiago 聖地牙哥, Argentina 阿根廷 Buenos_Aires 布宜諾斯艾利斯
Brazil 巴西 Brasilia 巴西利亞, Mexico 墨西哥 Mexico_City 墨西哥城, Kenya 肯亞 Nairobi 奈洛比, Ukraine 烏克蘭 Kyiv 基輔
Indonesia 印尼 Jakarta 雅加達, Malaysia 馬來西亞 Kuala_Lumpur 吉隆坡, Philippines 菲律賓 Manila 馬尼拉
Cambodia 柬埔寨 Phnom_Penh 金邊, Iceland 冰島 Reykjavik 雷克雅維克, Romania 羅馬尼亞 Bucharest 布加勒斯特
Bulgaria 保加利亞 Sofia 索菲亞, Serbia 塞爾維亞 Belgrade 貝爾格勒, Croatia 克羅埃西亞 Zagreb 札格雷布
Morocco 摩洛哥 Rabat 拉巴特, Ethiopia 衣索比亞 Addis_Ababa 阿迪斯阿貝巴, Pakistan 巴基斯坦 Islamabad 伊斯蘭馬巴德
Lebanon 黎巴嫩 Beirut 貝魯特, Syria 敘利亞 Damascus 大馬士革, Qatar 卡達 Doha 杜哈, New_Zealand 紐西蘭 Wellington 威靈頓
Colombia 哥倫比亞 Bogota 波哥大, Uruguay 烏拉圭 Montevideo 蒙特維多, Algeria 阿爾及利亞 Algiers 阿爾及爾
Afghanistan 阿富汗 Kabul 喀布爾, Venezuela 委內瑞拉 Caracas 卡拉卡斯, Laos 寮國 Vientiane 永珍
"""

_COLORS = """
red 紅色: blood 血, strawberry 草莓, cherry 櫻桃, tomato 番茄, fire_truck 消防車
yellow 黃色: banana 香蕉, lemon 檸檬, corn 玉米, sunflower 向日葵, chick 小雞
green 綠色: grass 草, leaf 樹葉, frog 青蛙, cucumber 黃瓜, spinach 菠菜
white 白色: snow 雪, milk 牛奶, salt 鹽, cotton 棉花, polar_bear 北極熊, swan 天鵝
black 黑色: coal 煤炭, crow 烏鴉, ink 墨水, tire 輪胎
blue 藍色: sky 天空, sea 海, sapphire 藍寶石, blueberry 藍莓
orange 橘色: carrot 胡蘿蔔, orange 橘子, pumpkin 南瓜
gray 灰色: elephant 大象, ash 灰燼, dolphin 海豚
purple 紫色: eggplant 茄子, lavender 薰衣草, violet 紫羅蘭
brown 棕色: chocolate 巧克力, soil 土壤, wood 木頭, coffee 咖啡
pink 粉紅色: flamingo 紅鶴, pig 豬
"""

WEEKDAYS_ZH = ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日")
WEEKDAYS_EN = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS_ZH = (
    "一月",
    "二月",
    "三月",
    "四月",
    "五月",
    "六月",
    "七月",
    "八月",
    "九月",
    "十月",
    "十一月",
    "十二月",
)
MONTHS_EN = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def _spaced(word: str) -> str:
    return word.replace("_", " ")


def nouns() -> list[tuple[str, str, str]]:
    """(English, traditional Chinese, English kind or empty)."""
    found = []
    for line in _NOUNS.strip().splitlines():
        kind, _, words = line.partition(":")
        for word in words.split(","):
            en, zh = word.split()
            found.append((en, zh, kind))
    return found


def antonyms_zh() -> list[tuple[str, str]]:
    """Pairs of traditional Chinese opposites."""
    return [
        (w[0], w[1]) if "-" not in w else (w.split("-")[0], w.split("-")[1]) for w in _ANTONYMS_ZH.split()
    ]


def antonyms_en() -> list[tuple[str, str]]:
    """Pairs of English opposites."""
    return [(w.split("-")[0], w.split("-")[1]) for w in _ANTONYMS_EN.split()]


def capitals() -> list[tuple[str, str, str, str]]:
    """(country in English, in traditional Chinese, capital in English, in traditional Chinese)."""
    rows = [entry.split() for line in _CAPITALS.strip().splitlines() for entry in line.split(",")]
    return [
        (_spaced(country), country_zh, _spaced(city), city_zh) for country, country_zh, city, city_zh in rows
    ]


def colors() -> list[tuple[str, str, str, str]]:
    """(thing in English, in traditional Chinese, its colour in English, in traditional Chinese)."""
    found = []
    for line in _COLORS.strip().splitlines():
        color, _, things = line.partition(":")
        color_en, color_zh = color.split()
        for thing in things.split(","):
            en, zh = thing.split()
            found.append((_spaced(en), zh, color_en, color_zh))
    return found
