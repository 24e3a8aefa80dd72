# Targets for the OCI hook and bare runtimes, included by the Makefile.

.PHONY: test-oci
test-oci: $(STAMP) ## the OCI hook, gates and attacks on bare runc 1.1 and 1.3, crun 1.8 and 1.28
	tests/oci/setup.sh
	$(PYTEST) -q tests/unit/hooks tests/oci

.PHONY: bench-hook
bench-hook: $(STAMP) ## one JSON line: the hook against a bare interpreter, and what it adds to a container's start
	@tests/oci/setup.sh bench >&2
	@$(BIN)/python tests/bench/hook/bench_hook.py $(BENCH_HOOK_ARGS)
