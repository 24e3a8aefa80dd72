# Targets for the runtime's other side, included by the Makefile.
NRI_VERSIONS ?= all

.PHONY: test-nri-versions
test-nri-versions: $(STAMP) ## component tests against every released version of the runtime's NRI library
	tests/lab/setup.sh component
	NRI_WARMUP_NRI_VERSIONS=$(NRI_VERSIONS) $(PYTEST) -q tests/component

.PHONY: bench-nri
bench-nri: $(STAMP) ## our NRI plugin and a minimal Go plugin under the same events, interleaved
	tests/lab/setup.sh component
	$(BIN)/python tests/bench/nri/bench_nri.py $(BENCH_NRI_ARGS)
