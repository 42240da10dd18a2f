// The Python face of the sampler: rows of logits and chains in, tokens out, the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "sampler.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace cutaway;

namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<int64_t> ids_of(nb::sequence list) {
  std::vector<int64_t> ids;
  for (nb::handle id : list) ids.push_back(nb::cast<int64_t>(id));
  return ids;
}

Stage& add(Chain& chain, Stage::Kind kind, double value = 0) {
  chain.stages.emplace_back();
  chain.stages.back().kind = kind;
  chain.stages.back().value = value;
  return chain.stages.back();
}

// (chain, seed, position, ledger, output ids or None)
Row row_of(nb::handle item) {
  const nb::tuple t = nb::cast<nb::tuple>(item);
  if (t.size() != 5) throw std::invalid_argument("a row has five fields");
  Row row{nb::cast<const Chain*>(t[0]), nb::cast<uint64_t>(t[1]), nb::cast<uint32_t>(t[2]), nb::cast<bool>(t[3]), {}};
  if (!t[4].is_none()) row.output = ids_of(nb::cast<nb::sequence>(t[4]));
  return row;
}

nb::list ledger_of(const Drawn& drawn) {
  nb::list ledger;
  for (const auto& [survivors, removed_mass, victims] : drawn.ledger) {
    nb::list ids;
    for (uint32_t id : victims) ids.append(id);
    ledger.append(nb::make_tuple(survivors, removed_mass, nb::tuple(ids)));
  }
  return ledger;
}

nb::list sample_rows(Logits logits, nb::list rows, const std::string& tier) {
  const size_t vocab = logits.shape(1);
  if (rows.size() != logits.shape(0)) throw std::invalid_argument("logits and rows differ in number");
  if (vocab == 0 || vocab > 0x7FFFFFFF) throw std::invalid_argument("the vocabulary is out of range");
  const Kernels& kernels = *choose_kernels(tier.c_str());
  std::vector<Row> wanted;
  for (nb::handle item : rows) wanted.push_back(row_of(item));
  std::vector<Drawn> drawn(wanted.size());
  {
    nb::gil_scoped_release release;
    for (size_t i = 0; i < wanted.size(); i++)
      drawn[i] = sample_row(kernels, logits.data() + i * vocab, vocab, wanted[i]);
  }
  nb::list out;
  for (const Drawn& d : drawn)
    out.append(nb::make_tuple((int)d.status, d.token_id, d.survivors, d.logprob, d.row_hash, ledger_of(d)));
  return out;
}

}  // namespace

void bind_sampler(nb::module_& m) {
  using Kind = Stage::Kind;
  nb::class_<Chain>(m, "Chain")
      .def("__init__", [](Chain* self, bool greedy) { (new (self) Chain())->greedy = greedy; }, "greedy"_a)
      .def("logit_bias", [](Chain& c, nb::dict bias) {
        Stage& stage = add(c, Kind::kBias);
        for (auto [id, by] : bias) stage.bias.emplace_back(nb::cast<int64_t>(id), (float)nb::cast<double>(by));
      })
      .def("penalties", [](Chain& c, double repetition, double presence, double frequency, nb::sequence prompt) {
        Stage& stage = add(c, Kind::kPenalties);
        stage.repetition = (float)repetition, stage.presence = (float)presence, stage.frequency = (float)frequency;
        c.prompt = ids_of(prompt);
        std::sort(c.prompt.begin(), c.prompt.end());
        c.prompt.erase(std::unique(c.prompt.begin(), c.prompt.end()), c.prompt.end());
      }, "repetition"_a, "presence"_a, "frequency"_a, "prompt"_a)
      .def("temperature", [](Chain& c, double by) { add(c, Kind::kTemperature, (double)(float)by); })
      .def("top_k", [](Chain& c, double k) { add(c, Kind::kTopK, k); })
      .def("top_p", [](Chain& c, double p) { add(c, Kind::kTopP, p); })
      .def("min_p", [](Chain& c, double log_p) { add(c, Kind::kMinP, log_p); })
      .def_prop_ro("wants_output", [](const Chain& c) {
        return std::any_of(c.stages.begin(), c.stages.end(), [](const Stage& s) { return s.kind == Kind::kPenalties; });
      });
  m.def("sample_rows", &sample_rows, "logits"_a, "rows"_a, "tier"_a,
        "(status, token id, survivors, logprob, row hash, ledger) per row; status 1: not finite, 2: ask the twin.");
}
