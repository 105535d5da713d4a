import pytest

from stages.corpus.phrases import table_phrasings
from tests.stages.corpus.phrases.checks import check_phrasings


@pytest.mark.parametrize("name", ["EN_TO_ZH", "ZH_TO_EN", "ANTONYM", "CAPITAL", "NEXT", "COLOR", "KIND"])
def test_templates_have_their_slot_in_all_languages_and_splits(name: str) -> None:
    check_phrasings(getattr(table_phrasings, name), {"x"})
