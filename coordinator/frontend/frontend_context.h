// What the faces of the frontend share. Made once by the server; everything outlives the calls.
#pragma once

#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/frontend/background.h"
#include "coordinator/frontend/delta_buffer.h"
#include "coordinator/frontend/served_model.h"
#include "coordinator/frontend/stream_writer.h"
#include "coordinator/grammar/grammar_compiler.h"

namespace bitshard {

struct FrontendContext {
  Engine* engine = nullptr;
  const ServedModel* model = nullptr;
  EngineMetrics* metrics = nullptr;
  StreamWriter* writer = nullptr;
  Background* background = nullptr;
  GrammarCompiler* grammars = nullptr;  // null: constraints are UNIMPLEMENTED
  SlowReaderPolicy slow_reader;
};

}  // namespace bitshard
