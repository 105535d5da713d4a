"""Machine learning and data topics, three lines each, as in `stages.corpus.phrases.topics_code`."""

TEXT = """
過擬合 | overfitting
過擬合是模型太貼近訓練資料，在*新資料*上反而變差。 | Overfitting is fitting the training data too closely, so that *new data* go wrong.
過擬合的模型在實際使用時會*失準*。 | An overfitted model becomes *unreliable* in real use.

欠擬合 | underfitting
欠擬合是模型太*簡單*，連訓練資料都學不好。 | Underfitting is when a model is too *simple* to learn even its training data.
發現欠擬合時可以*加大*模型或訓練更久。 | When you see it, use a *larger* model or train longer.

正則化 | regularization
正則化是對模型的*複雜度*加上限制。 | Regularization puts a limit on the *complexity* of a model.
它能減少*過擬合*。 | It reduces *overfitting*.

梯度下降 | gradient descent
梯度下降沿著讓*損失*變小的方向更新參數。 | Gradient descent updates parameters in the direction that lowers the *loss*.
它是訓練*神經網路*的基本方法。 | It is the basic way to train *neural networks*.

學習率 | the learning rate
學習率決定每一步更新的*大小*。 | The learning rate sets the *size* of each update.
太大會*發散*，太小會學得很慢。 | Too large a rate *diverges*, too small a rate learns slowly.

神經網路 | a neural network
神經網路由許多層相連的*節點*組成，能從資料中學習。 | A neural network is made of layers of connected *nodes* that learn from data.
它能學會影像和*語言*等複雜的工作。 | It can learn complex tasks such as images and *language*.

損失函數 | a loss function
損失函數衡量預測和答案的*差距*。 | A loss function measures the *gap* between prediction and answer.
訓練就是要讓它*變小*。 | Training means making it *smaller*.

交叉熵 | cross entropy
交叉熵衡量預測的*機率*與真實答案相差多少。 | Cross entropy measures how far predicted *probabilities* are from the true answer.
它是*分類*和語言模型常用的損失。 | It is the usual loss of *classifiers* and language models.

驗證集 | a validation set
驗證集是不參與訓練、用來*檢查*模型的資料。 | A validation set is data kept out of training to *check* a model.
它能告訴我們何時該*停止*訓練。 | It tells us when to *stop* training.

注意力機制 | the attention mechanism
注意力機制讓模型決定該看輸入的*哪些部分*。 | The attention mechanism lets a model decide *which parts* of the input to look at.
它是 *Transformer* 的核心。 | It is the heart of the *Transformer*.

分詞器 | a tokenizer
分詞器把文字切成模型能讀的*小單位*。 | A tokenizer cuts text into *small units* that a model can read.
切得好可以讓序列更*短*。 | A good one makes sequences *shorter*.

量化 | quantization
量化是用較少的*位元*儲存模型的權重。 | Quantization stores the weights of a model with fewer *bits*.
它能節省*記憶體*並加快推論。 | It saves *memory* and speeds up inference.

批次大小 | the batch size
批次大小是一次更新所用的*樣本*數。 | The batch size is the number of *examples* used for one update.
較大的批次使梯度更*穩定*，但更佔記憶體。 | A larger batch gives *steadier* gradients but needs more memory.

提早停止 | early stopping
提早停止是在*驗證*表現不再進步時結束訓練。 | Early stopping ends training when the *validation* score no longer improves.
它省下時間，也能避免*過擬合*。 | It saves time and prevents *overfitting*.

梯度裁剪 | gradient clipping
梯度裁剪限制梯度的*長度*。 | Gradient clipping limits the *length* of the gradient.
它能防止訓練突然*不穩*。 | It keeps training from suddenly becoming *unstable*.

詞嵌入 | a word embedding
詞嵌入把詞表示成一個*向量*。 | A word embedding represents a word as a *vector*.
意思相近的詞會有*相近*的向量。 | Words with like meanings get *similar* vectors.

微調 | fine-tuning
微調是用新的資料繼續訓練*已訓練*好的模型。 | Fine-tuning continues the training of a *pretrained* model on new data.
它只需少量資料就能學會新*任務*。 | It teaches a new *task* with little data.

反向傳播 | backpropagation
反向傳播從輸出往回計算每個參數的*梯度*。 | Backpropagation computes the *gradient* of each parameter from the output backwards.
沒有它就很難*訓練*深的網路。 | Without it deep networks would be hard to *train*.

災難性遺忘 | catastrophic forgetting
災難性遺忘是模型學新東西時*忘掉*舊的能力。 | Catastrophic forgetting is when a model *loses* old skills while learning new ones.
混入舊資料*複習*可以減輕它。 | *Rehearsing* old data makes it milder.

混淆矩陣 | a confusion matrix
混淆矩陣列出各類別*預測*對錯的次數。 | A confusion matrix counts right and wrong *predictions* for each class.
它能看出模型把哪些類別*弄混*。 | It shows which classes a model *mixes up*.

資料清理 | data cleaning
資料清理是修正或移除*錯誤*的資料。 | Data cleaning fixes or removes *wrong* data.
資料不乾淨，*結果*就不可信。 | With dirty data, the *results* cannot be trusted.

冪等 | idempotence
冪等是指同一個操作做*多次*和做一次結果相同。 | Idempotence means that doing something *many times* has the same effect as doing it once.
它讓失敗的工作可以安全地*重試*。 | It makes a failed job safe to *retry*.

備份 | a backup
備份是把資料*複製*一份存到別處。 | A backup is a *copy* of data kept in another place.
硬碟壞掉時，備份能*救回*資料。 | When a disk fails, a backup *saves* the data.

技術文件 | technical documentation
技術文件說明系統怎麼*使用*和為何如此設計。 | Technical documentation says how to *use* a system and why it is built so.
好的文件讓*新人*很快上手。 | Good documents help *newcomers* start quickly.
"""
