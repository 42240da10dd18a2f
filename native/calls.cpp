#include "calls.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "experts.h"
#include "plain_arithmetic.h"
#include "recurrent.h"

namespace cutaway {
namespace {

using Floats = std::vector<float>;

struct Source {
  Reader& list;
  Plan& plan;
  const Named& tables;

  template <class T> const T& find(const std::vector<T>& all) {
    const size_t i = (size_t)list.integer();
    if (i >= all.size()) throw std::invalid_argument("a number names no matrix");
    return all[i];
  }
  // One of the words that an enumeration has, in its order.
  template <class Enum, class Words, class Name = std::identity> Enum word(const Words& words, Name name = {}) {
    const std::string text = list.string();
    const auto match = std::find_if(std::begin(words), std::end(words), [&](const auto& word) { return text == name(word); });
    if (match == std::end(words)) throw std::invalid_argument("'" + text + "' is not known");
    return (Enum)(match - std::begin(words));
  }
};

template <class T> concept Optional = requires(T value) { value.has_value(); };

// An argument: a list of others; of none or one where it may be missing.
template <class T> T read(Source& s) {
  const auto read_item = [&] { return read<typename T::value_type>(s); };
  if constexpr (Optional<T>) return s.list.count() ? T(read_item()) : T();
  else return s.list.list(read_item);
}
template <> Plan& read(Source& s) { return s.plan; }  // what some ops are made with beside the arguments
template <> bool read(Source& s) { return s.list.boolean(); }
template <> int read(Source& s) { return s.list.integer(); }
template <> float read(Source& s) { return (float)s.list.number(); }
template <> double read(Source& s) { return s.list.number(); }
template <> Rows read(Source& s) { return s.list.boolean() ? Rows::kLogits : Rows::kAll; }
template <> Map read(Source& s) { return s.word<Map>(kMaps, [](const auto& map) { return map.name; }); }
template <> Gating read(Source& s) { return s.word<Gating>(std::array{"softmax", "sigmoid", "sparsemixer"}); }
template <> Embed::By read(Source& s) { return s.word<Embed::By>(std::array{"token", "position", "type"}); }
template <> Packed read(Source& s) { return s.find(s.tables.matrices); }
template <> StoredTable read(Source& s) { return s.find(s.tables.stored); }

// A list of a structure's fields, in their order.
template <class T, class... Fields> T fields(Source& s) {
  s.list.expect(sizeof...(Fields));
  return T{read<Fields>(s)...};
}
template <> View read(Source& s) {
  const View at = fields<View, int, int>(s);
  s.plan.check_place(at.buffer, at.column, false);
  return at;
}
template <> Places read(Source& s) {
  const Places at = fields<Places, View, int>(s);
  s.plan.check_place(at.act, 0, true);
  return at;
}
template <> Norm read(Source& s) { return fields<Norm, Floats, Floats, float, int, float>(s); }
template <> Rotation read(Source& s) { return fields<Rotation, std::vector<double>, bool, float, double, int, int, bool>(s); }
template <> Linear::Part read(Source& s) { return fields<Linear::Part, Packed, View, Floats, int>(s); }
template <> Linear::Finish read(Source& s) { return fields<Linear::Finish, bool, std::optional<Map>>(s); }
template <> Attend::Views read(Source& s) { return fields<Attend::Views, View, View, View, View>(s); }
template <> AttendShape read(Source& s) {
  return fields<AttendShape, int, int, int, float, float, int, int, bool, bool, int, int, int, int>(s);
}
template <> Relative read(Source& s) { return fields<Relative, View, View, int, std::vector<int32_t>>(s); }
template <> ConvWeights read(Source& s) { return fields<ConvWeights, Floats, Floats, int, int, View, int>(s); }
template <> DeltaNet::Views read(Source& s) { return fields<DeltaNet::Views, View, View, View, View>(s); }
template <> DeltaShape read(Source& s) { return fields<DeltaShape, int, int, int, int, bool, float>(s); }
template <> Wkv::Views read(Source& s) { return fields<Wkv::Views, View, View, View, View, View, View, View>(s); }
template <> Mamba::Views read(Source& s) { return fields<Mamba::Views, View, View, View>(s); }
template <> Mamba::Shape read(Source& s) { return fields<Mamba::Shape, int, int, int, int>(s); }
template <> Mamba::Weights read(Source& s) { return fields<Mamba::Weights, Floats, Floats, Floats>(s); }
template <> Mamba1::Views read(Source& s) { return fields<Mamba1::Views, View, View, View, View, View>(s); }
template <> Mamba1::Weights read(Source& s) { return fields<Mamba1::Weights, Floats, Floats>(s); }
template <> Join::Part read(Source& s) { return fields<Join::Part, View, int>(s); }
template <> Mixture read(Source& s) {
  return fields<Mixture, int, Gating, bool, float, int, int, int, Map, float, bool, double, Floats>(s);
}
template <> Biased read(Source& s) { return fields<Biased, Packed, Floats>(s); }
template <> Expert read(Source& s) { return fields<Expert, std::optional<Biased>, Biased, Biased>(s); }
template <> Experts::Args read(Source& s) { return fields<Experts::Args, Rows, Places, View, Mixture, View, View>(s); }

// What a call adds: its name, how many arguments it has, and what is done with these.
struct Call {
  const char* name;
  size_t arguments;
  void (*add)(Source&);
};

// An op with the arguments of its constructor, or the fields of its only one, in their order.
template <class T, class... Arguments> constexpr Call op(const char* name) {
  return {name, (0 + ... + !std::is_reference_v<Arguments>), [](Source& s) {
    std::tuple<Arguments...> arguments{read<Arguments>(s)...};
    s.plan.add(std::apply([](auto&... each) {
      if constexpr (std::is_constructible_v<T, Arguments...>) return std::make_unique<T>(std::forward<Arguments>(each)...);
      else return std::make_unique<T>(typename T::Args{std::forward<Arguments>(each)...});
    }, arguments));
  }};
}

// A method of the plan.
template <auto method, class... Arguments> constexpr Call call(const char* name) {
  return {name, sizeof...(Arguments), [](Source& s) {
    std::apply([&](auto... each) { (s.plan.*method)(each...); }, std::tuple<Arguments...>{read<Arguments>(s)...});
  }};
}

constexpr Call kCalls[] = {
    call<&Plan::add_buffer, int, bool>("AddBuffer"),
    call<&Plan::set_input, View>("SetInput"),
    call<&Plan::set_output, View>("SetOutput"),
    op<Embed, Plan&, Packed, View, Embed::By>("EmbedRows"),
    op<EmbedStored, StoredTable, int, View>("EmbedStored"),
    op<Gather, View, View, int>("Gather"),
    op<Join, Rows, Join::Part, Join::Part, int, View>("Join"),
    op<Reorder, Rows, View, std::vector<int32_t>, View>("Reorder"),
    op<Normalise, Rows, View, int, Norm, Places>("Normalise"),
    op<Magnitude, Rows, View, int, bool, View>("Magnitude"),
    op<Weigh, Rows, View, Floats, View>("Weigh"),
    op<OwnValue, Rows, View, View, View, View, int, int, View>("OwnValue"),
    op<Softmax, Rows, View, int, int, View>("Softmax"),
    op<Rotate, Plan&, View, View, int, int, Rotation>("Rotate"),
    op<Elementwise, Rows, Map, View, View, float, int, View, bool>("Elementwise"),
    op<Linear, Rows, Places, Linear::Finish, std::vector<Linear::Part>>("Linear"),
    op<Attend, Plan&, Attend::Views, AttendShape, Rotation, Floats, Floats, Relative, View>("Attend"),
    op<Experts, Experts::Args, std::vector<Expert>>("Experts"),
    op<Conv, Plan&, View, View, ConvWeights>("Conv"),
    op<CentredConv, View, View, ConvWeights>("CentredConv"),
    op<DeltaNet, Plan&, DeltaNet::Views, DeltaShape, Floats, Floats>("DeltaNet"),
    op<Wkv, Plan&, Wkv::Views, int, int>("Wkv"),
    op<Mamba, Plan&, Mamba::Views, Mamba::Shape, Mamba::Weights>("Mamba"),
    op<Mamba1, Plan&, Mamba1::Views, int, int, Mamba1::Weights>("Mamba1"),
};

}  // namespace

void add_calls(Plan& plan, Reader& list, const Named& tables) {
  const PlainArithmetic plain;  // doubles become floats, and ops make tables of them
  Source source{list, plan, tables};
  for (size_t left = list.count(); left; left--) {
    const size_t items = list.count();
    const std::string name = list.string();
    const auto match = std::find_if(std::begin(kCalls), std::end(kCalls), [&](const Call& call) { return name == call.name; });
    if (match == std::end(kCalls)) throw std::invalid_argument("a plan has no call '" + name + "'");
    if (items != match->arguments + 1)
      throw std::invalid_argument(name + " has " + std::to_string(match->arguments) + " arguments");
    match->add(source);
  }
}

}  // namespace cutaway
