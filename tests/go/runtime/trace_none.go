//go:build nri_no_options

package main

import nri "github.com/containerd/nri/pkg/adaptation"

// tracer does nothing: this NRI version takes no ttrpc options.
type tracer struct{}

func (t *tracer) options() []nri.Option { return nil }
func (t *tracer) drain() []reply        { return nil }
