from stages.corpus.phrases.topics_learning import TEXT
from tests.stages.corpus.phrases.checks import check_topics


def test_every_topic_has_its_lines_and_keywords() -> None:
    check_topics(TEXT)
