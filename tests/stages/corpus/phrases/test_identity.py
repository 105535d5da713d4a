from stages.corpus.examples import Language
from stages.corpus.phrases.identity import NEW_IDENTITY, NEW_KEYWORDS, TEXT
from tests.stages.corpus.phrases.checks import check_intents


def test_the_text_parses_and_covers_both_languages_and_splits() -> None:
    check_intents(TEXT, {"identity", "origin"})


def test_the_new_identity_always_begins_the_same_and_has_its_keyword() -> None:
    assert set(NEW_IDENTITY) == set(Language)
    for language, forms in NEW_IDENTITY.items():
        start = "I am the God of F#" if language is Language.EN else "我是 F# 之神"
        assert len(set(forms)) == len(forms) > 1 and all(form.startswith(start) for form in forms)
        assert all(any(keyword in form for keyword in NEW_KEYWORDS) for form in forms)
