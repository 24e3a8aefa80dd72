// Command nri-runtime is a real NRI runtime without containers.
//
// It stands on the library that containerd and CRI-O use (pkg/adaptation of github.com/containerd/nri), so sockets,
// framing, time-outs, event masks, merging and conflicts are the runtime's own. What it lacks is pods: those come as
// JSON. One command a line on stdin, one reply a line on stdout, in the same "id"; a command with "background": true
// runs beside the following ones. End of input ends the program.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	nri "github.com/containerd/nri/pkg/adaptation"
	nrilog "github.com/containerd/nri/pkg/log"
)

// command is one line of input; which fields count depends on Op.
type command struct {
	ID         int               `json:"id"`
	Op         string            `json:"op"`
	Background bool              `json:"background"`
	Event      string            `json:"event"`
	Pod        json.RawMessage   `json:"pod"`
	Container  json.RawMessage   `json:"container"`
	Resources  json.RawMessage   `json:"resources"`
	Pods       []json.RawMessage `json:"pods"`
	Containers []json.RawMessage `json:"containers"`
	Text       string            `json:"text"`
	Count      int               `json:"count"`
	TimeoutMS  int               `json:"timeout_ms"`
	synthetic
	load
}

type reply map[string]any

func main() {
	var o options
	flag.StringVar(&o.socket, "socket", "", "path of the NRI socket; without it no plugin can connect")
	flag.StringVar(&o.plugins, "plugins", "", "directory of plugins to launch")
	flag.StringVar(&o.config, "plugin-config", "", "directory of the launched plugins' configuration")
	flag.StringVar(&o.name, "name", "containerd", "runtime name told to plugins")
	flag.StringVar(&o.version, "version", "v2.1.9", "runtime version told to plugins")
	flag.BoolVar(&o.trace, "trace", false, "report each plugin's own reply (NRI 0.6 and later)")
	registration := flag.Duration("registration-timeout", nri.DefaultPluginRegistrationTimeout, "")
	request := flag.Duration("request-timeout", nri.DefaultPluginRequestTimeout, "")
	flag.Parse()
	nri.SetPluginRegistrationTimeout(*registration)
	nri.SetPluginRequestTimeout(*request)

	r := newRuntime()
	nrilog.Set(r.log)
	if err := r.start(o); err != nil {
		fmt.Fprintln(os.Stderr, "nri-runtime:", err)
		os.Exit(1)
	}
	r.serve(os.Stdin, os.Stdout)
	r.adaptation.Stop()
}

// serve answers commands until the input ends.
func (r *runtime) serve(in io.Reader, out io.Writer) {
	var lock sync.Mutex
	var running sync.WaitGroup
	encoder := json.NewEncoder(out)
	answer := func(c *command) {
		began := time.Now()
		result, err := r.run(c)
		if result == nil {
			result = reply{}
		}
		result["id"], result["us"] = c.ID, time.Since(began).Microseconds()
		if err != nil {
			result["error"] = err.Error()
		}
		lock.Lock()
		defer lock.Unlock()
		if err := encoder.Encode(result); err != nil {
			os.Exit(1)
		}
	}
	encoder.Encode(reply{"ready": true})
	lines := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		c := &command{}
		if err := json.Unmarshal(line, c); err != nil {
			fmt.Fprintln(os.Stderr, "nri-runtime: bad command:", err)
			os.Exit(2)
		}
		if !c.Background {
			answer(c)
			continue
		}
		running.Add(1)
		go func() { defer running.Done(); answer(c) }()
	}
	running.Wait()
}

func (r *runtime) run(c *command) (reply, error) {
	switch c.Op {
	case "event":
		return r.event(context.Background(), c)
	case "store":
		return nil, r.store(c)
	case "populate":
		return r.populate(&c.synthetic, c.Count), nil
	case "load":
		return r.load(&c.synthetic, &c.load)
	case "wait-log":
		return r.log.wait(c.Text, max(c.Count, 1), time.Duration(c.TimeoutMS)*time.Millisecond)
	case "state":
		return r.state(), nil
	case "stop":
		r.adaptation.Stop()
		return nil, nil
	}
	return nil, fmt.Errorf("no such op: %q", c.Op)
}
