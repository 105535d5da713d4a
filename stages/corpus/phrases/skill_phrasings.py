"""The prompt templates of the computed skills; `stages.corpus.generators.skills` fills them."""

from __future__ import annotations

from stages.corpus.examples import phrasings

ADDITION = phrasings(
    zh="""
    {a}+{b}等於多少？
    {a} + {b} = ?
    {a}+{b}=
    {a}加{b}是多少？
    {a} 加 {b} 等於幾？
    請計算 {a}+{b}
    算一下 {a}+{b}
    請問 {a}加{b}等於多少？
    {a}和{b}的和是多少？
    幫我算 {a}+{b}
    """,
    en="""
    What is {a} + {b}?
    What is {a} plus {b}?
    Calculate {a} + {b}
    {a} plus {b} equals?
    Add {a} and {b}
    Compute {a} + {b}
    How much is {a} plus {b}?
    Please add {a} and {b}
    """,
    zh_heldout="""
    請幫我算 {a}+{b}
    請問 {a}+{b} 是多少？
    {a}加上{b}是多少？
    """,
    en_heldout="""
    How much is {a} + {b}?
    Please calculate {a} + {b}
    Tell me what {a} plus {b} is
    """,
)
SUBTRACTION = phrasings(
    zh="""
    {a}-{b}等於多少？
    {a} - {b} = ?
    {a}-{b}=
    {a}減{b}是多少？
    {a} 減 {b} 等於幾？
    請計算 {a}-{b}
    算一下 {a}-{b}
    請問 {a}減{b}等於多少？
    {a}減去{b}剩多少？
    幫我算 {a}-{b}
    """,
    en="""
    What is {a} - {b}?
    What is {a} minus {b}?
    Calculate {a} - {b}
    {a} minus {b} equals?
    Subtract {b} from {a}
    Compute {a} - {b}
    How much is {a} minus {b}?
    Please subtract {b} from {a}
    """,
    zh_heldout="""
    請幫我算 {a}-{b}
    請問 {a}-{b} 是多少？
    {a}減去{b}是多少？
    """,
    en_heldout="""
    How much is {a} - {b}?
    Please calculate {a} - {b}
    Tell me what {a} minus {b} is
    """,
)
LARGER = phrasings(
    zh="""
    {a} 和 {b} 哪個大？
    {a}和{b}哪個比較大？
    {a} 跟 {b} 哪個數字大？
    比較大的是 {a} 還是 {b}？
    請問 {a} 和 {b} 誰比較大？
    {a} 與 {b} 中較大的數是？
    """,
    en="""
    Which is larger, {a} or {b}?
    Which is bigger, {a} or {b}?
    Which number is larger: {a} or {b}?
    What is the larger of {a} and {b}?
    Is {a} or {b} larger?
    """,
    zh_heldout="""
    請問 {a} 和 {b} 哪個大？
    {a} 與 {b} 哪個比較大？
    """,
    en_heldout="""
    Which number is bigger, {a} or {b}?
    Is {a} or {b} bigger?
    """,
)
SMALLER = phrasings(
    zh="""
    {a} 和 {b} 哪個小？
    {a}和{b}哪個比較小？
    {a} 跟 {b} 哪個數字小？
    比較小的是 {a} 還是 {b}？
    {a} 與 {b} 中較小的數是？
    """,
    en="""
    Which is smaller, {a} or {b}?
    Which number is smaller: {a} or {b}?
    What is the smaller of {a} and {b}?
    Is {a} or {b} smaller?
    """,
    zh_heldout="""
    請問 {a} 和 {b} 哪個小？
    {a} 與 {b} 哪個比較小？
    """,
    en_heldout="""
    Which number is smaller, {a} or {b}?
    """,
)
ASCENDING = phrasings(
    zh="""
    請把 {items} 由小到大排列
    把 {items} 從小到大排序
    由小到大排列：{items}
    從小排到大：{items}
    請將這些數字由小到大排好：{items}
    """,
    en="""
    Sort in ascending order: {items}
    Sort these numbers from small to large: {items}
    Arrange {items} from smallest to largest
    Put {items} in ascending order
    """,
    zh_heldout="""
    請把 {items} 從小到大排序
    把 {items} 由小到大排列
    """,
    en_heldout="""
    Arrange in ascending order: {items}
    Sort {items} from smallest to largest
    """,
)
DESCENDING = phrasings(
    zh="""
    請把 {items} 由大到小排列
    把 {items} 從大到小排序
    由大到小排列：{items}
    從大排到小：{items}
    請將這些數字由大到小排好：{items}
    """,
    en="""
    Sort in descending order: {items}
    Sort these numbers from large to small: {items}
    Arrange {items} from largest to smallest
    Put {items} in descending order
    """,
    zh_heldout="""
    請把 {items} 從大到小排序
    把 {items} 由大到小排列
    """,
    en_heldout="""
    Arrange in descending order: {items}
    Sort {items} from largest to smallest
    """,
)
COUNTING = phrasings(
    zh="""
    數一數有幾個：{items}
    這裡有幾個：{items}
    請數一數：{items}
    {items} 一共有幾個？
    {items} 總共有幾個？
    清單裡有幾項：{items}
    """,
    en="""
    How many items are there: {items}
    Count the items: {items}
    How many are in this list: {items}
    Please count: {items}
    Count these: {items}
    """,
    zh_heldout="""
    請數一數有幾個：{items}
    請問 {items} 一共有幾個？
    """,
    en_heldout="""
    Please count the items: {items}
    How many items are in this list: {items}
    """,
)
COPYING = phrasings(
    zh="""
    請重複：{items}
    請照著說：{items}
    跟我唸：{items}
    複製這段文字：{items}
    原樣輸出：{items}
    請再說一次：{items}
    """,
    en="""
    Repeat: {items}
    Say this: {items}
    Copy this text: {items}
    Repeat after me: {items}
    Echo: {items}
    Please repeat: {items}
    """,
    zh_heldout="""
    請複製這段文字：{items}
    請跟我唸：{items}
    """,
    en_heldout="""
    Please copy this text: {items}
    Please repeat after me: {items}
    """,
)
