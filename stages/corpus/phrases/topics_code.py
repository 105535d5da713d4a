"""Programming topics: three lines a topic: its name, what it is, why it matters; Chinese | English; `*…*`
marks the keyword.
"""

TEXT = """
遞迴 | recursion
遞迴是函式*呼叫自己*，直到遇到終止條件。 | Recursion is a function that *calls itself* until it meets a stop condition.
它很適合處理*樹*這類自我相似的結構。 | It suits self-similar structures such as *trees*.

F# | F#
F# 是 .NET 上以*函數式*為主的程式語言。 | F# is a *functional-first* programming language on .NET.
它的型別推斷和不可變資料讓程式*簡潔*又可靠。 | Its type inference and immutable data make code *short* and reliable.

TorchSharp | TorchSharp
TorchSharp 讓 .NET 程式使用 *PyTorch* 的張量與模型。 | TorchSharp lets .NET programs use the tensors and models of *PyTorch*.
有了它，可以用 F# 或 C# *訓練*模型。 | With it you can *train* models in F# or C#.

單子 | a monad
單子是把帶有*情境*的計算串接起來的方式。 | A monad is a way to chain computations that carry a *context*.
它讓錯誤處理和非同步可以用同一種方式*組合*。 | It lets error handling and async code *compose* in the same way.

模式匹配 | pattern matching
模式匹配依資料的*形狀*選擇要執行的分支。 | Pattern matching chooses a branch by the *shape* of the data.
編譯器能提醒你*漏掉*的情況。 | The compiler can warn about *missing* cases.

不可變資料 | immutable data
不可變資料建立之後就不能*修改*。 | Immutable data cannot be *changed* after it is created.
它讓*並行*程式更容易推理。 | It makes *concurrent* code easier to reason about.

管線運算子 | the pipe operator
管線運算子把左邊的值*傳給*右邊的函式。 | The pipe operator *passes* the value on its left to the function on its right.
它讓資料流可以由左到右*閱讀*。 | It lets you *read* the data flow from left to right.

閉包 | a closure
閉包是記住外層*變數*的函式。 | A closure is a function that remembers outer *variables*.
它可以把*狀態*藏在函式裡面。 | It can keep *state* inside a function.

型別推斷 | type inference
型別推斷是由*編譯器*自己找出運算式的型別。 | Type inference means that the *compiler* finds the types by itself.
少寫*註記*也能保有型別安全。 | You write fewer *annotations* and stay type safe.

高階函式 | a higher-order function
高階函式接受*函式*作為參數，或回傳函式。 | A higher-order function takes or returns another *function*.
它讓常見的流程可以*重複使用*。 | It makes common patterns *reusable*.

單元測試 | unit testing
單元測試檢查程式的一個*小部分*是否正確。 | Unit testing checks whether a *small part* of a program is correct.
它讓人敢於*修改*程式。 | It gives you the courage to *change* code.

Git | Git
Git 是記錄檔案變更的*版本控制*系統。 | Git is a *version control* system that records changes to files.
它讓多人能同時開發並隨時*回復*。 | It lets people work together and *go back* at any time.

編譯器 | a compiler
編譯器把原始碼翻譯成*機器*能執行的形式。 | A compiler translates source code into a form a *machine* can run.
它能在執行之前找出許多*錯誤*。 | It finds many *errors* before the program runs.

直譯器 | an interpreter
直譯器一邊讀程式一邊*執行*。 | An interpreter reads a program and *executes* it as it goes.
它讓人能快速*試驗*想法。 | It lets you *try* ideas quickly.

指標 | a pointer
指標存放的是記憶體*位址*。 | A pointer holds a memory *address*.
它避免*複製*大量資料，但用錯會當機。 | It avoids *copying* data, but misuse crashes programs.

雜湊表 | a hash table
雜湊表用*鍵*的雜湊值找到儲存位置。 | A hash table finds a slot from the hash of a *key*.
它的查詢平均只需*常數*時間。 | Its lookups take *constant* time on average.

二分搜尋 | binary search
二分搜尋在*排序*好的資料中每次排除一半。 | Binary search removes half of the *sorted* data at each step.
它只需*對數*次比較。 | It needs only a *logarithmic* number of comparisons.

演算法 | an algorithm
演算法是解決問題的明確*步驟*。 | An algorithm is a clear list of *steps* that solves a problem.
好的演算法能省下大量*時間*。 | A good one saves a lot of *time*.

API | an API
API 是程式之間溝通的*介面*。 | An API is the *interface* through which programs talk.
它讓人不必知道*內部*細節就能使用功能。 | It lets you use features without knowing the *inside*.

資料庫 | a database
資料庫有組織地*儲存*和查詢資料。 | A database *stores* data in order and answers queries.
它能保證資料的*一致性*。 | It keeps data *consistent*.

快取 | a cache
快取把常用的資料放在*較快*的地方。 | A cache keeps often used data in a *faster* place.
它能減少*等待*的時間。 | It reduces *waiting* time.

執行緒 | a thread
執行緒是程式中可以*同時*進行的工作流程。 | A thread is a flow of work that runs *at the same time* as others.
它能善用多個*核心*。 | It makes use of several *cores*.

死結 | a deadlock
死結是兩個以上的工作*互相等待*而都無法前進。 | A deadlock is when tasks *wait for each other* and none can go on.
固定取得鎖的*順序*可以避免死結。 | A fixed *order* of taking locks prevents it.

例外處理 | exception handling
例外處理是攔住執行時的*錯誤*並做出反應。 | Exception handling catches *errors* at run time and reacts to them.
它讓程式不會因小錯而*中止*。 | It keeps a small fault from *stopping* the program.

正規表示式 | a regular expression
正規表示式用一個*樣式*描述一類文字。 | A regular expression describes texts by a *pattern*.
它能快速*搜尋*和取代文字。 | It can *search* and replace text quickly.

除錯 | debugging
除錯是找出並修正程式*錯誤*的過程。 | Debugging is finding and fixing *faults* in a program.
先能*重現*問題，才容易修好它。 | A fault that you can *reproduce* is easier to fix.

重構 | refactoring
重構是改善程式*結構*而不改變行為。 | Refactoring improves the *structure* of code without changing what it does.
它讓程式更容易*維護*。 | It makes code easier to *maintain*.

Linux | Linux
Linux 是開放原始碼的*作業系統*核心。 | Linux is an open source *operating system* kernel.
大部分的*伺服器*都使用它。 | Most *servers* run on it.

GPU | a GPU
GPU 是擅長大量*平行*運算的處理器。 | A GPU is a processor made for massive *parallel* work.
它能大幅加快模型的*訓練*。 | It makes the *training* of models much faster.

Unicode | Unicode
Unicode 給各種文字的每個*字元*一個編號。 | Unicode gives every *character* of every script a number.
它讓不同*語言*的文字能放在同一個檔案裡。 | It lets texts of many *languages* live in one file.

物件導向 | object-oriented programming
物件導向把資料和*方法*放進物件裡。 | Object-oriented programming puts data and *methods* into objects.
它有助於把大程式分成*小塊*。 | It helps to split a large program into *small pieces*.

非同步 | asynchronous programming
非同步讓程式在*等待*時先做別的事。 | Asynchronous programming does other work while it *waits*.
它讓伺服器能服務更多*連線*。 | It lets a server handle more *connections*.
"""
