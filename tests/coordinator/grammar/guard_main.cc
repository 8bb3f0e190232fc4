// The process that compile_guard.h starts, for tests of what starts it.
#include "coordinator/grammar/compile_guard.h"

int main() { return bitshard::RunCompileGuard(); }
