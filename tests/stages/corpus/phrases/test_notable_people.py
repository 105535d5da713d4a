from stages.corpus.phrases.notable_people import MAKER_QUESTIONS, MAKERS, PEOPLE, PERSON_QUESTIONS
from tests.stages.corpus.phrases.checks import check_phrasings, has_chinese


def test_templates_have_their_slots_in_all_languages_and_splits() -> None:
    check_phrasings(MAKER_QUESTIONS, {"verb", "x"})
    check_phrasings(PERSON_QUESTIONS, {"x"})


def test_every_row_has_both_languages_and_stands_once() -> None:
    things, people = set(), set()
    for line in MAKERS.strip().splitlines():
        verb_zh, verb_en, rest = line.split(" | ")
        _, thing, _, maker = rest.split(" / ")
        assert has_chinese(verb_zh) and (verb_en + thing + maker).isascii() and thing not in things
        things.add(thing)
    for line in PEOPLE.strip().splitlines():
        name_zh, name, about_zh, about = line.split(" | ")
        assert has_chinese(name_zh) and name.isascii() and name not in people
        assert about_zh.count("*") == about.count("*") == 2, line
        people.add(name)
    assert len(things) >= 30 and len(people) >= 15
