// The op `Statistics` of the domain `nightjar` for onnxruntime on the processor.
//
// A graph holds the same numbers as a function of standard operators, which runs where this library is not registered.
// The kernel keeps memory between calls, but nothing in it.
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "curves.h"
#include "lags.h"
#include "onnxruntime.h"
#include "periods.h"
#include "points.h"
#include "shapes.h"

namespace nightjar {
namespace {

constexpr int kInputs = 6, kOutputs = 2;
constexpr int kInputTypes[kInputs] = {kFloat, kFloat, kFloat, kInt64, kBool, kFloat};

// A refusal of onnxruntime's.
struct Refused {
  OrtStatus* status;
};

// Memory for rows of some length.
struct Work {
  explicit Work(int longest) : length(longest), points(longest), lags(longest), shapes(longest) {}

  int length;
  Points points;
  Lags lags;
  Shapes shapes;
  std::unique_ptr<Periods> periods;

  void tell(const Asked& asked, const Curve& curve, Told told) {
    points.take(curve, asked.bands);
    tell_curve(points, asked.bands, curve.redshift, told);
    if (asked.lags) lags.tell(points, asked.bands, told);
    if (asked.periods) {
      if (!periods) periods = std::make_unique<Periods>(length);
      periods->tell(points, asked.bands, asked.periods, told);
    }
    if (asked.shapes) shapes.tell(points, asked.bands, curve.redshift, told);
  }
};

// Memory that calls have left for the next: a fresh page costs more than a short row. Calls from several threads at
// once have one each.
class Works {
 public:
  std::unique_ptr<Work> take(int length) {
    {
      const std::lock_guard<std::mutex> held(lock_);
      if (!left_.empty() && left_.back()->length >= length) {
        std::unique_ptr<Work> found = std::move(left_.back());
        left_.pop_back();
        return found;
      }
    }
    return std::make_unique<Work>(std::max(length, kUsual));
  }

  void leave(std::unique_ptr<Work> work) {
    if (work->length > kKept) return;
    const std::lock_guard<std::mutex> held(lock_);
    if (!left_.empty() && left_.back()->length < work->length) left_.pop_back();
    left_.push_back(std::move(work));
  }

 private:
  static constexpr int kUsual = 128, kKept = 1024;  // points
  std::mutex lock_;
  std::vector<std::unique_ptr<Work>> left_;
};

struct Kernel {
  const OrtApi* api;
  Asked asked;
  mutable Works works;
};

void check(OrtStatus* status) {
  if (status) throw Refused{status};
}

int64_t attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name) {
  int64_t value = 0;
  check(api->KernelInfoGetAttribute_int64(info, name, &value));
  return value;
}

template <class Body>
OrtStatus* guarded(const OrtApi* api, Body body) {
  try {
    body();
    return nullptr;
  } catch (const Refused& refused) {
    return refused.status;
  } catch (const std::exception& error) {
    return api->CreateStatus(kFail, error.what());
  }
}

struct Shape {
  size_t axes = 0;
  int64_t sizes[2] = {1, 1};
};

Shape shape_of(const OrtApi* api, const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api->GetTensorTypeAndShape(value, &info));
  Shape found;
  OrtStatus* status = api->GetDimensionsCount(info, &found.axes);
  if (!status && found.axes >= 1 && found.axes <= 2) status = api->GetDimensions(info, found.sizes, found.axes);
  api->ReleaseTensorTypeAndShapeInfo(info);
  check(status);
  return found;
}

// The data of an input [B, L], or [B], of the batch and length given.
const void* input(const Kernel& kernel, OrtKernelContext* context, size_t index, int64_t rows, int64_t length) {
  const OrtValue* value = nullptr;
  check(kernel.api->KernelContext_GetInput(context, index, &value));
  if (!value) throw Refused{kernel.api->CreateStatus(kInvalidArgument, "Statistics: an input is missing")};
  const Shape shape = shape_of(kernel.api, value);
  if (shape.axes != (length ? 2u : 1u) || shape.sizes[0] != rows || (length && shape.sizes[1] != length))
    throw Refused{kernel.api->CreateStatus(kInvalidArgument, "Statistics: inputs are not all [batch, length]")};
  void* data = nullptr;
  check(kernel.api->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return data;
}

void* output(const Kernel& kernel, OrtKernelContext* context, size_t index, int64_t rows, int64_t width) {
  const int64_t sizes[2] = {rows, width};
  OrtValue* value = nullptr;
  void* data = nullptr;
  check(kernel.api->KernelContext_GetOutput(context, index, sizes, 2, &value));
  check(kernel.api->GetTensorMutableData(value, &data));
  return data;
}

int width_of(const Asked& asked) {
  return count_of_curves(asked.bands) + (asked.lags ? 2 * kLagCount : 0) +
         (asked.periods ? count_of_periods(asked.bands) : 0) + (asked.shapes ? count_of_shapes(asked.bands) : 0);
}

void compute(const Kernel& kernel, OrtKernelContext* context) {
  const OrtValue* first = nullptr;
  check(kernel.api->KernelContext_GetInput(context, 0, &first));
  const Shape shape = shape_of(kernel.api, first);
  const int64_t rows = shape.sizes[0], length = shape.sizes[1], width = width_of(kernel.asked);
  if (shape.axes != 2 || length < 1 || length > (1 << 20))
    throw Refused{kernel.api->CreateStatus(kInvalidArgument, "Statistics: flux is not [batch, length]")};
  const auto of = [&](size_t index, int64_t wide) { return input(kernel, context, index, rows, wide); };
  const auto* flux = static_cast<const float*>(of(0, length));
  const auto* flux_err = static_cast<const float*>(of(1, length));
  const auto* time = static_cast<const float*>(of(2, length));
  const auto* band = static_cast<const int64_t*>(of(3, length));
  const auto* mask = static_cast<const bool*>(of(4, length));
  const auto* redshift = static_cast<const float*>(of(5, 0));
  auto* value = static_cast<float*>(output(kernel, context, 0, rows, width));
  auto* known = static_cast<bool*>(output(kernel, context, 1, rows, width));
  std::unique_ptr<Work> work = kernel.works.take(static_cast<int>(length));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * length;
    const Curve curve{flux + at, flux_err + at, time + at, band + at, mask + at, redshift[row], static_cast<int>(length)};
    work->tell(kernel.asked, curve, {value + row * width, known + row * width});
  }
  kernel.works.leave(std::move(work));
}

OrtStatus* create(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** made) {
  return guarded(api, [&] {
    const int64_t bands = attribute(api, info, "bands"), periods = attribute(api, info, "periods");
    if (bands < 1 || bands > kMostBands || periods < 0 || periods > 2)
      throw Refused{api->CreateStatus(kInvalidArgument, "Statistics: attributes that no kernel was written for")};
    const Asked asked{static_cast<int>(bands), attribute(api, info, "lags") != 0, attribute(api, info, "shapes") != 0,
                      static_cast<int>(periods)};
    *made = new Kernel{api, asked, {}};
  });
}

OrtStatus* run(void* made, OrtKernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(made);
  return guarded(kernel.api, [&] { compute(kernel, context); });
}

constexpr OrtCustomOp statistics() {
  OrtCustomOp op{};
  op.version = kApiVersion;
  op.GetName = [](const OrtCustomOp*) -> const char* { return "Statistics"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // the processor
  op.GetInputType = [](const OrtCustomOp*, size_t index) { return kInputTypes[index]; };
  op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return kInputs; };
  op.GetOutputType = [](const OrtCustomOp*, size_t index) { return index ? kBool : kFloat; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return kOutputs; };
  op.KernelDestroy = [](void* made) { delete static_cast<Kernel*>(made); };
  op.GetInputCharacteristic = op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kDefaultMemory; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = run;
  return op;
}

constexpr OrtCustomOp kStatistics = statistics();

}  // namespace
}  // namespace nightjar

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                             const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(kApiVersion);
  if (!api) return base->GetApi(1)->CreateStatus(1, "this onnxruntime is older than 1.16");
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api->CreateCustomOpDomain("nightjar", &domain)) return status;
  OrtStatus* status = api->CustomOpDomain_Add(domain, &nightjar::kStatistics);
  if (!status) status = api->AddCustomOpDomain(options, domain);
  if (status) api->ReleaseCustomOpDomain(domain);
  return status;
}
