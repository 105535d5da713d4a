"""Traditional to simplified Chinese for the texts of this package: words that differ by region first, then
characters.

The pairs cover the characters that stand in this package and no others. They follow the PRC's general table
of simplified characters; a test looks for traditional characters that the table misses.
"""

from __future__ import annotations

_WORDS = """
程式語言-编程语言 程式設計師-程序员 程式-程序 個人資料-个人信息 資料庫-数据库 資料-数据 函式-函数 變數-变量 記憶體-内存
位元-比特 執行緒-线程 演算法-算法 雜湊-哈希 遞迴-递归 快取-缓存 介面-接口 伺服器-服务器 作業系統-操作系统 直譯器-解释器
例外處理-异常处理 正規表示式-正则表达式 物件導向-面向对象 物件-对象 除錯-调试 指標-指针 位址-地址 字元-字符 型別-类型
管線-管道 運算子-运算符 運算式-表达式 開放原始碼-开放源代码 原始碼-源代码 網路-网络 影片-视频 公車-公交车 腳踏車-自行车
高麗菜-卷心菜 鳳梨-菠萝 雷射-激光 太空人-宇航员 全球資訊網-万维网 盤尼西林-青霉素 演化-进化 大霹靂-大爆炸
天擇說-自然选择学说 義大利-意大利 澳洲-澳大利亚 坎培拉-堪培拉 肯亞-肯尼亚 奈洛比-内罗毕 聖地牙哥-圣地亚哥
克羅埃西亞-克罗地亚 札格雷布-萨格勒布 衣索比亞-埃塞俄比亚 阿迪斯阿貝巴-亚的斯亚贝巴 伊斯蘭馬巴德-伊斯兰堡 卡達-卡塔尔
杜哈-多哈 紐西蘭-新西兰 威靈頓-惠灵顿 蒙特維多-蒙得维的亚 寮國-老挝 永珍-万象 雷克雅維克-雷克雅未克 貝爾格勒-贝尔格莱德
阿姆斯壯-阿姆斯特朗 梵谷-梵高 達文西-达芬奇 莫札特-莫扎特 摩斯-莫尔斯 賈伯斯-乔布斯 祖克柏-扎克伯格 蓋茲-盖茨
門得列夫-门捷列夫 伏打-伏特 湯姆森-汤姆孙 貝佐斯-贝索斯 助理-助手 當機-崩溃 裝置-设备 紅鶴-火烈鸟 訊息-信息 資訊-信息
非同步-异步 並行-并发 平行-并行 影像-图像 哈囉-哈喽
"""

_CHARACTERS = """
並并 乾干 亞亚 佔占 來来 係系 個个 們们 倫伦 偽伪 傘伞 備备 傳传 傷伤 儲储 內内 兩两 冪幂 別别 則则 創创 劇剧 動动 務务
勝胜 勞劳 勵励 參参 唸念 問问 喪丧 單单 嗎吗 噴喷 囉啰 國国 圍围 園园 圖图 執执 報报 場场 塊块 壞坏 壯壮 夢梦 奧奥 學学
實实 寫写 寬宽 寶宝 將将 專专 尋寻 對对 導导 層层 屬属 島岛 師师 帶带 幫帮 幾几 庫库 張张 強强 後后 從从 復复 徵征 恆恒
愛爱 態态 憶忆 應应 懶懒 戶户 換换 損损 擇择 擊击 擋挡 據据 擬拟 攔拦 敗败 敘叙 數数 斷断 於于 時时 書书 會会 東东 條条
棄弃 業业 極极 構构 樂乐 樓楼 標标 樣样 樹树 橋桥 機机 檔档 檢检 檸柠 櫻樱 權权 歡欢 殺杀 殼壳 氣气 決决 沒没 況况 淨净
淺浅 減减 測测 湊凑 湯汤 準准 溝沟 溫温 滿满 漲涨 漸渐 漿浆 潔洁 濕湿 災灾 為为 烏乌 無无 熱热 燈灯 燼烬 爾尔 狀状 狹狭
獅狮 現现 環环 產产 畫画 當当 療疗 發发 盤盘 確确 碼码 種种 稱称 積积 穩稳 窮穷 筆笔 節节 簡简 約约 紅红 納纳 紐纽
紙纸 細细 紹绍 終终 組组 結结 給给 統统 經经 綠绿 維维 網网 緒绪 線线 編编 緩缓 練练 總总 織织 繞绕 繼继 續续 羅罗 義义
習习 聖圣 聰聪 聲声 聽听 脈脉 脹胀 腦脑 腳脚 膽胆 臉脸 臘腊 臟脏 與与 興兴 舊旧 茲兹 華华 萊莱 萬万 葉叶 蓋盖 蔔卜 蔥葱
薦荐 藍蓝 藥药 蘋苹 蘭兰 蘿萝 處处 虛虚 號号 蟲虫 術术 衛卫 補补 裝装 裡里 製制 複复 襪袜 襯衬 見见 規规 覺觉 觀观 計计
訊讯 訓训 記记 設设 許许 訴诉 註注 詞词 詢询 試试 詩诗 話话 該该 認认 語语 誠诚 誤误 說说 誰谁 調调 談谈 請请 論论 諾诺
謀谋 謙谦 講讲 謝谢 證证 識识 譯译 議议 護护 讀读 變变 讓让 豬猪 貓猫 貝贝 貴贵 買买 貼贴 資资 賈贾 賓宾 賣卖 賤贱 質质
車车 軟软 較较 輔辅 輕轻 輪轮 輸输 轉转 辦办 迴回 這这 連连 週周 進进 運运 過过 達达 遜逊 遞递 遠远 適适 遷迁 選选 遺遗
還还 邊边 醜丑 醫医 釋释 鈴铃 銀银 鋼钢 錄录 錢钱 錯错 鍵键 鎖锁 鏡镜 鐘钟 鐳镭 鐵铁 鑰钥 長长 門门 閉闭 開开 間间 閱阅
關关 陣阵 陸陆 陽阳 階阶 際际 隨随 險险 雙双 雜杂 雞鸡 難难 雲云 電电 靂雳 靈灵 靜静 韓韩 響响 項项 順顺 須须 預预 頓顿
頭头 題题 顏颜 類类 顯显 風风 飛飞 飯饭 養养 餓饿 館馆 馬马 驕骄 驗验 驟骤 骯肮 髒脏 體体 髮发 鬧闹 魚鱼 魯鲁 鯨鲸 鳥鸟
鳳凤 鴉鸦 鴨鸭 鵝鹅 鶴鹤 鹽盐 麗丽 麥麦 麵面 麼么 黃黄 點点 齒齿 針针 著着
"""

WORDS = {pair.split("-")[0]: pair.split("-")[1] for pair in _WORDS.split()}
"""Words of Taiwan → words of the mainland, already in simplified characters."""

CHARACTERS = {pair[0]: pair[1] for pair in _CHARACTERS.split()}
"""Traditional character → simplified character."""

_LONGEST_FIRST = sorted(WORDS, key=len, reverse=True)
_TABLE = str.maketrans(CHARACTERS)


def to_hans(text: str) -> str:
    """The text in simplified Chinese; everything else stays as it is."""
    for word in _LONGEST_FIRST:
        text = text.replace(word, WORDS[word])
    return text.translate(_TABLE)
