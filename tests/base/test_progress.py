"""What is said on standard error."""

from cutaway.base.progress import say_error


def test_an_error_that_quotes_a_long_name_keeps_its_beginning_and_its_end(capsys):
    say_error(f"unknown format {'x' * 100_000}: choose one of q8_0, q4_0")
    said = capsys.readouterr().err
    assert said.startswith("cutaway: error: unknown format xxx") and " … " in said
    assert said.endswith("xxx: choose one of q8_0, q4_0\n")
    assert len(said) < 1300


def test_an_error_of_a_usual_length_is_whole(capsys):
    sentence = f"choose one of {', '.join(map(str, range(200)))}"
    say_error(sentence)
    assert capsys.readouterr().err == f"cutaway: error: {sentence}\n"
