package main

import (
	"fmt"
	"strings"

	nri "github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// synthetic describes pods that look like a kubelet's.
type synthetic struct {
	Bytes         int               `json:"bytes"`          // encoded size of a container, at least
	LabelledEvery int               `json:"labelled_every"` // each n-th pod carries Labels and Annotations; 0: none
	Labels        map[string]string `json:"labels"`
	Annotations   map[string]string `json:"annotations"`
}

type pair struct {
	pod       *nri.PodSandbox
	container *nri.Container
	labelled  bool
}

// make builds pod number i of a series.
func (s *synthetic) make(series string, i int) pair {
	labelled := s.LabelledEvery > 0 && i%s.LabelledEvery == s.LabelledEvery-1
	id := func(kind string) string { return fmt.Sprintf("%-8s%056x", series+kind, i)[:64] }
	podID := strings.ReplaceAll(id("p"), " ", "0")
	name := fmt.Sprintf("app-%s-%d", series, i)
	uid := fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
	parent := "/kubepods/burstable/pod" + uid
	podLabels := map[string]string{
		"app.kubernetes.io/name": name, "app.kubernetes.io/instance": name, "pod-template-hash": "6d4cf56db6",
		"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": uid,
	}
	podAnnotations := map[string]string{
		"kubernetes.io/config.seen": "2026-01-01T00:00:00.000000000Z", "kubernetes.io/config.source": "api",
		"prometheus.io/scrape": "true", "prometheus.io/port": "9090",
	}
	if labelled {
		for k, v := range s.Labels {
			podLabels[k] = v
		}
		for k, v := range s.Annotations {
			podAnnotations[k] = v
		}
	}
	pod := &nri.PodSandbox{
		Id: podID, Name: name, Uid: uid, Namespace: "default", Labels: podLabels, Annotations: podAnnotations,
		Linux: &nri.LinuxPodSandbox{CgroupParent: parent, CgroupsPath: parent + "/" + podID, Namespaces: namespaces()},
	}
	return pair{pod, s.container(strings.ReplaceAll(id("c"), " ", "0"), pod), labelled}
}

func namespaces() []*nri.LinuxNamespace {
	out := []*nri.LinuxNamespace{}
	for _, kind := range []string{"pid", "ipc", "uts", "mount", "network"} {
		out = append(out, &nri.LinuxNamespace{Type: kind})
	}
	return out
}

func (s *synthetic) container(id string, pod *nri.PodSandbox) *nri.Container {
	volumes := "/var/lib/kubelet/pods/" + pod.Uid
	mount := func(destination, source string, options ...string) *nri.Mount {
		return &nri.Mount{Destination: destination, Type: "bind", Source: source, Options: append([]string{"rbind", "rprivate"}, options...)}
	}
	c := &nri.Container{
		Id: id, PodSandboxId: pod.Id, Name: "server", State: api.ContainerState_CONTAINER_RUNNING,
		Labels: map[string]string{
			"io.cri-containerd.kind": "container", "io.kubernetes.container.name": "server",
			"io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": pod.Namespace, "io.kubernetes.pod.uid": pod.Uid,
		},
		Annotations: map[string]string{
			"io.kubernetes.cri.container-name": "server", "io.kubernetes.cri.container-type": "container",
			"io.kubernetes.cri.image-name": "registry.example/team/server:1.4.2", "io.kubernetes.cri.sandbox-id": pod.Id,
			"io.kubernetes.cri.sandbox-name": pod.Name, "io.kubernetes.cri.sandbox-namespace": pod.Namespace,
			"io.kubernetes.cri.sandbox-uid": pod.Uid,
		},
		Args: []string{"/usr/bin/server", "--listen=0.0.0.0:8080", "--config=/etc/server/config.yaml"},
		Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=" + pod.Name},
		Mounts: []*nri.Mount{
			mount("/etc/hosts", volumes+"/etc-hosts", "rw"), mount("/dev/termination-log", volumes+"/containers/server/0", "rw"),
			mount("/etc/resolv.conf", "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/"+pod.Id+"/resolv.conf", "rw"),
			mount("/var/run/secrets/kubernetes.io/serviceaccount", volumes+"/volumes/kubernetes.io~projected/kube-api-access", "ro"),
			mount("/data", volumes+"/volumes/kubernetes.io~csi/data/mount", "rw"),
		},
		Linux: &nri.LinuxContainer{
			Namespaces: namespaces(), CgroupsPath: pod.Linux.CgroupParent + "/" + id,
			Resources: &nri.LinuxResources{Memory: &nri.LinuxMemory{Limit: api.Int64(int64(1 << 30))}, Cpu: &nri.LinuxCPU{Shares: api.UInt64(uint64(512))}},
		},
	}
	for i := 0; proto.Size(c) < s.Bytes; i++ {
		c.Env = append(c.Env, fmt.Sprintf("SERVICE_%d_PORT_8080_TCP=tcp://10.96.%d.%d:8080", i, i/256, i%256))
	}
	return c
}

// populate fills the node that Synchronize tells of.
func (r *runtime) populate(s *synthetic, count int) reply {
	var pods []*nri.PodSandbox
	var containers []*nri.Container
	size := 0
	for i := range count {
		p := s.make("s", i)
		pods, containers = append(pods, p.pod), append(containers, p.container)
		size += proto.Size(p.pod) + proto.Size(p.container)
	}
	r.Lock()
	defer r.Unlock()
	r.pods, r.containers = pods, containers
	return reply{"bytes": size}
}
