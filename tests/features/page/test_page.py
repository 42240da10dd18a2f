"""``cutaway export --page``: what it refuses. (trace/web/test_page_alone.py looks at the page.)"""

from cutaway.features.page import folder as page_folder


def test_an_existing_folder_is_left_alone(refused, tiny_path, tmp_path):
    (tmp_path / "page").mkdir()
    said = refused("export", "--page", tiny_path, tmp_path / "page")
    assert "exists already: name a new folder, or delete it" in said
    assert not [*(tmp_path / "page").iterdir()]


def test_without_the_core_it_says_how_to_have_it(refused, tiny_path, tmp_path, monkeypatch):
    monkeypatch.setattr(page_folder, "CORES", tmp_path / "none")
    said = refused("export", "--page", tiny_path, tmp_path / "page")
    assert "native/web/build.sh src/cutaway/trace/web/cores" in said
    assert not (tmp_path / "page").exists()


def test_more_context_than_the_model_has_is_refused(refused, tiny_path, tmp_path):
    said = refused("export", "--page", tiny_path, tmp_path / "page", "--context", "100000")
    assert "context" in said
