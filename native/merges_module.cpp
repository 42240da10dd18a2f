// The Python face of the merges of a vocabulary.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "gil.h"
#include "ranked_merges.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace cutaway;

namespace {

constexpr size_t kLongWord = 4096;  // characters: to ask for the GIL again may take longer than to merge a shorter word

void append(Texts& texts, nb::handle text) {
  const Py_ssize_t length = PyUnicode_GetLength(text.ptr());
  if (length < 0) throw nb::python_error();
  const size_t begin = texts.characters.size();
  texts.characters.resize(begin + length);
  if (!PyUnicode_AsUCS4(text.ptr(), (Py_UCS4*)texts.characters.data() + begin, length, 0)) throw nb::python_error();
  texts.ends.push_back(begin + length);
}

Texts texts_of(nb::list list) {
  Texts texts;
  texts.ends.reserve(list.size() + 1);
  for (const nb::handle text : list) append(texts, text);
  return texts;
}

Texts text_of(nb::str text) {
  Texts texts;
  append(texts, text);
  return texts;
}

std::vector<int32_t> merge(const RankedMerges& merges, nb::str word) {
  const Texts text = text_of(word);
  const auto merged = [&] { return merges.merge(text[0]); };
  return text[0].size() < kLongWord ? merged() : without_gil(merged);
}

}  // namespace

void bind_merges(nb::module_& m) {
  nb::class_<RankedMerges>(m, "RankedMerges", "Byte-pair encoding by ranks: it makes tokens of a word.")
      .def("__init__", [](RankedMerges* self, nb::list tokens, const std::vector<int32_t>& hidden, nb::list merges) {
        Texts texts = texts_of(tokens), pairs = texts_of(merges);
        without_gil([&] { new (self) RankedMerges(std::move(texts), hidden, pairs); });
      }, "tokens"_a, "hidden"_a, "merges"_a,
           "tokens: texts by id. hidden: ids of tokens that no text spells. merges: \"LEFT RIGHT\", the lowest rank first.")
      .def_prop_ro("misfit", &RankedMerges::misfit, "The first merge that does not join two tokens to a third; -1: there is none.")
      .def("id_of", [](const RankedMerges& merges, nb::str text) { return merges.id_of(text_of(text)[0]); }, "text"_a,
           "The token with this text, the last of several; -1: there is none.")
      .def("merge", &merge, "word"_a, "The ids of a word, whose characters are tokens.");
}
