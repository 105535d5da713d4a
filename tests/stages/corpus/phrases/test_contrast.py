from stages.corpus.phrases.contrast import TEXT
from tests.stages.corpus.phrases.checks import check_intents


def test_the_text_parses_and_covers_both_languages_and_splits() -> None:
    check_intents(TEXT, {"whoami", "myname", "whois", "capability", "wellbeing"})
