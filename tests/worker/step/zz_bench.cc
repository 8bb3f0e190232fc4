#include <chrono>
#include <cstdio>
#include <cstdlib>
#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "kernels/base/check.h"
#include "worker/load/loader.h"
#include "worker/step/step_runner.h"
#include <csignal>
#include <map>
#include <string>
#include <sys/time.h>
using namespace bitshard;
static const StepProgress* gp; static long hist[4096];
static void Prof(int) { ++hist[gp->busy ? gp->op.load() & 4095 : 4095]; }
static void Report(const internal::ModelGraph& g, const char* what) {
  std::map<std::string, long> by; long all = 0;
  for (int i = 0; i < 4096; ++i) if (hist[i]) { std::string n = i < g.nodes_size() ? g.nodes(i).name() : "outside"; auto k = n.rfind('.'); if (n.find("layers.") == 0) { auto a = n.find('.', 7); n = n.substr(a + 1); } (void)k; by[n] += hist[i]; all += hist[i]; hist[i] = 0; }
  std::printf("%s:", what); for (auto& [k, v] : by) std::printf(" %s %.1f%%", k.c_str(), 100.0 * v / all); std::printf(" (%ld samples)\n", all);
}
double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
int main(int argc, char** argv) {
  auto ck = OpenCheckpoint(argv[1]); CHECK_OK(ck.status());
  auto g = BuildModelGraph(ck->config, ck->index); CHECK_OK(g.status());
  auto plans = ShardModel(*g, ck->index, {1.0}); CHECK_OK(plans.status());
  ThreadPool pool(argc > 2 ? atoi(argv[2]) : 1);
  double t0 = Now();
  auto w = LoadWeights((*plans)[0], pool, nullptr); CHECK_OK(w.status());
  std::printf("load %.3f s arena %lu read %lu\n", Now() - t0, (*w)->arena_bytes, (*w)->read_bytes);
  StepRunner::Options o;
  o.numerics.set_activations(internal::NumericsOptions::ACTIVATIONS_A16);
  o.numerics.set_kv_cache_type(internal::NumericsOptions::CACHE_TYPE_BF16);
  o.numerics.set_block_tokens(16); o.numerics.set_max_step_tokens(256); o.numerics.set_max_slots(32);
  o.pool = &pool;
  t0 = Now();
  auto r = StepRunner::Bind((*plans)[0], *w, o); CHECK_OK(r.status());
  std::printf("bind %.3f s workspace %lu\n", Now() - t0, (*r)->WorkspaceBytes());
  for (auto& l : (*r)->DescribeKernels()) std::printf("  %s\n", l.c_str());
  gp = &(*r)->progress(); signal(SIGPROF, Prof); itimerval it{{0, 1000}, {0, 1000}}; setitimer(ITIMER_PROF, &it, nullptr);
  for (int batch : {1, 16}) {
    CHECK_OK((*r)->StartEpoch(1, batch, MakeSoloCollective(), 4096));
    uint64_t step = 0; 
    int N = 128;
    for (int chunk = 0; chunk < batch * N; chunk += 256) {
      internal::StepPlan p; p.set_term(1); p.set_epoch(batch); p.set_step(++step);
      int rows = 0;
      for (int s = chunk / N; s < batch && rows < 2; ++s, ++rows) {
        auto& n = *p.add_new_sequences(); n.set_slot(s); for (int i = 0; i < N; ++i) n.add_tokens((i * 7 + s) % 1000 + 5);
        n.set_n_prompt(N); n.mutable_sampling()->set_top_p(1); for (int b = 0; b < 16; ++b) n.add_blocks(s * 16 + b);
        p.add_slot(s); p.add_slot_gen(0); p.add_start(0); p.add_n_tokens(N); p.add_output_index(0); p.add_flags(1); p.add_n_new_blocks(0);
      }
      t0 = Now(); CHECK_OK((*r)->Run(p).status());
      if (chunk == 0) std::printf("prefill %d tokens: %.1f tok/s\n", rows * N, rows * N / (Now() - t0));
    }
    Report((*plans)[0].graph(), "prefill"); timespec c0, c1; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c0); t0 = Now(); int steps = 64;
    for (int k = 0; k < steps; ++k) {
      internal::StepPlan p; p.set_term(1); p.set_epoch(batch); p.set_step(++step);
      for (int s = 0; s < batch; ++s) { p.add_slot(s); p.add_slot_gen(0); p.add_start(N + k); p.add_n_tokens(1); p.add_output_index(0); p.add_flags(1); p.add_n_new_blocks(0); }
      CHECK_OK((*r)->Run(p).status());
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c1); double cpu = c1.tv_sec - c0.tv_sec + (c1.tv_nsec - c0.tv_nsec) * 1e-9; std::printf("per cpu second %.1f ", batch * steps / cpu); Report((*plans)[0].graph(), "decode");
    std::printf("decode batch %d: %.1f tok/s\n", batch, batch * steps / (Now() - t0));
  }
}
