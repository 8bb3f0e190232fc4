#include "worker/collective/solo.h"

namespace bitshard {
namespace {

class SoloCollective final : public SoloOf<Collective> {};

}  // namespace

std::unique_ptr<Collective> MakeSoloCollective() { return std::make_unique<SoloCollective>(); }

}  // namespace bitshard
