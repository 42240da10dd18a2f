"""bench/growth.py: which ratio of compare.py's documents stands at which context and size."""

import json
import sys
from xml.etree import ElementTree

import growth
from growth import Point, curves


def result(model, parameters, **figures):
    def engine(kind, factor, *, other=False):
        values = {name: [v * factor for v in several] for name, several in figures.items()}
        return {"title": kind, "kind": kind, "other_format": other, "figures": values}

    engines = [engine("cutaway", 3), engine("llama", 9, other=True), engine("llama", 1)]
    return {"model": model, "parameters": parameters, "engines": engines}


SMALL = result("small", 1e8, decode64=[10.0, 20.0], decode512=[8.0, 8.0], prefill=[4.0], cold=[1])
LARGE = result("large", 8e9, decode64=[1.0])


def test_a_model_is_a_curve_by_context_and_a_metric_a_curve_by_size():
    by_context, by_size = curves([LARGE, SMALL], "llama")
    three = (3.0, 3.0, 3.0)
    assert by_context == {
        "small": [Point(64, *three), Point(512, *three)],
        "large": [Point(64, *three)],
    }
    assert by_size == {
        "one stream at context 64": [Point(1e8, *three), Point(8e9, *three)],
        "a prompt of 512": [Point(1e8, *three)],
    }
    assert curves([LARGE, SMALL], "openvino") == ({}, {})


def test_the_command_writes_a_drawing(monkeypatch, tmp_path):
    files = []
    for one in (SMALL, LARGE):
        files.append(tmp_path / f"{one['model']}.json")
        files[-1].write_text(json.dumps(one))
    svg = tmp_path / "growth.svg"
    monkeypatch.setattr(sys, "argv", ["growth.py", str(svg), *map(str, files)])
    growth.main()
    drawing = ElementTree.fromstring(svg.read_text())
    texts = {t.text for t in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {"small", "large", "64", "512", "0.1", "8", "3×"} <= texts
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}polyline"))) == 4
