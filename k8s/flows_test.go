package k8s

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// allowed is every connection that the NetworkPolicies allow, in every overlay. A new port or rule
// needs a line here. A peer that may connect to "elsewhere" may connect to any address.
const allowed = `
worker       worker       TCP 7000   the ring
worker       coordinator  TCP 7000   membership
coordinator  coordinator  TCP 7000   an observer asks the leader
worker       etcd         TCP 2379
coordinator  etcd         TCP 2379   and the observer
etcd         etcd         TCP 2379   a member that joins anew asks the others
etcd         etcd         TCP 2380   Raft
worker       kube-dns     UDP 53
worker       kube-dns     TCP 53
coordinator  kube-dns     UDP 53
coordinator  kube-dns     TCP 53
worker       dns-cache    UDP 53
worker       dns-cache    TCP 53
coordinator  dns-cache    UDP 53
coordinator  dns-cache    TCP 53
etcd         dns-cache    UDP 53
etcd         dns-cache    TCP 53
etcd         kube-dns     UDP 53
etcd         kube-dns     TCP 53
coordinator  elsewhere    TCP 443    the Kubernetes API, for the observer
coordinator  elsewhere    TCP 6443
other        etcd         TCP 2379   etcd is shared by the namespace's jobs
`

// besides returns the connections that an overlay allows in addition, and those that it lacks.
func besides(overlay string) (more string, without string) {
	switch overlay {
	case "s3":
		return "worker elsewhere TCP 443 storage", ""
	case "s3-identity":
		return "worker elsewhere TCP 443 storage\nworker node-identity TCP 80 credentials\n" +
			"worker pod-identity TCP 80 credentials", ""
	case "monitoring":
		return "monitoring coordinator TCP 8080\nmonitoring etcd TCP 2381", ""
	case "external-etcd":
		return "worker elsewhere TCP 2379\ncoordinator elsewhere TCP 2379", " etcd "
	}
	return "", ""
}

// kubelet lists the ports that nothing but the pod's own host reaches: probes and port-forwards.
func kubelet() []string {
	return []string{"worker 7001", "coordinator 7001", "coordinator 8080", "etcd 2381"}
}

// table is the set of flows that lines name by their first four words.
func table(lines, without string) map[string]bool {
	flows := map[string]bool{}
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) < 4 {
			continue
		}
		flow := strings.Join(words[:4], " ")
		if without == "" || !strings.Contains(" "+flow, without) {
			flows[flow] = true
		}
	}
	return flows
}

// A peer is one end of a connection: a pod, or an outside address if it has no labels.
type peer struct {
	name      string
	address   string // of a host's own service
	namespace string
	labels    map[string]string
	ports     []corev1.ContainerPort
}

// peers are the overlay's pods and those that are around them.
func peers(objects []metav1.Object) []peer {
	dns := []corev1.ContainerPort{{ContainerPort: 53, Protocol: corev1.ProtocolUDP},
		{ContainerPort: 53, Protocol: corev1.ProtocolTCP}}
	web := []corev1.ContainerPort{{ContainerPort: 80, Protocol: corev1.ProtocolTCP}}
	var open []corev1.ContainerPort // ports on which a stranger may listen
	for _, port := range []int32{22, 80, 443, 2379, 2380, 2381, 6443, 7000, 7001, 8080} {
		open = append(open, corev1.ContainerPort{ContainerPort: port,
			Protocol: corev1.ProtocolTCP})
	}
	all := []peer{
		{name: "elsewhere", ports: open},
		{name: "dns-cache", address: "169.254.20.10", ports: dns},
		{name: "node-identity", address: "169.254.169.254", ports: web},
		{name: "pod-identity", address: "169.254.170.23", ports: web},
		{name: "stranger", namespace: "rondo", labels: map[string]string{"app": "x"}, ports: open},
		{name: "kube-dns", namespace: "kube-system",
			labels: map[string]string{"k8s-app": "kube-dns"}, ports: dns},
		{name: "monitoring", namespace: "monitoring", labels: map[string]string{"app": "p"}},
		{name: "other-etcd", namespace: "other", ports: open, labels: map[string]string{
			"app.kubernetes.io/name": "rondo", "app.kubernetes.io/component": "etcd"}},
	}
	for _, p := range pods(objects) {
		own := peer{name: component(p), namespace: "rondo", labels: p.Labels}
		for _, c := range p.Spec.Containers {
			own.ports = append(own.ports, c.Ports...)
		}
		all = append(all, own)
		if own.name == "worker" { // one of another job in the namespace
			other := own
			other.name, other.labels = "other", maps.Clone(own.labels)
			other.labels["rondo.dev/job"] = "other"
			all = append(all, other)
		}
	}
	return all
}

// selects reports whether a selector has the labels; nil selects nothing.
func selects(t *testing.T, selector *metav1.LabelSelector, of map[string]string) bool {
	t.Helper()
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Matches(labels.Set(of))
}

// admits reports whether a rule's peers include the other side; a rule without peers is for all.
func admits(t *testing.T, rule []networkingv1.NetworkPolicyPeer, other peer) bool {
	t.Helper()
	return len(rule) == 0 || slices.ContainsFunc(rule, func(p networkingv1.NetworkPolicyPeer) bool {
		switch {
		case p.IPBlock != nil && other.address != "":
			block, err := netip.ParsePrefix(p.IPBlock.CIDR)
			return err == nil && block.Contains(netip.MustParseAddr(other.address))
		case p.IPBlock != nil || other.labels == nil:
			return false // the named addresses belong to the hosts' own services
		case p.NamespaceSelector == nil && other.namespace != "rondo":
			return false
		case p.NamespaceSelector != nil && !selects(t, p.NamespaceSelector,
			map[string]string{"kubernetes.io/metadata.name": other.namespace}):
			return false
		}
		return p.PodSelector == nil || selects(t, p.PodSelector, other.labels)
	})
}

// opens reports whether a rule's ports have the receiver's port; a rule without ports is for all.
func opens(rule []networkingv1.NetworkPolicyPort, port corev1.ContainerPort) bool {
	protocol := func(p *corev1.Protocol) corev1.Protocol {
		if p == nil {
			return corev1.ProtocolTCP
		}
		return *p
	}
	return len(rule) == 0 || slices.ContainsFunc(rule, func(p networkingv1.NetworkPolicyPort) bool {
		if protocol(p.Protocol) != port.Protocol {
			return false
		}
		return p.Port == nil || p.Port.Type == intstr.String && p.Port.StrVal == port.Name ||
			p.Port.Type == intstr.Int && p.Port.IntVal == port.ContainerPort
	})
}

// leaves and enters report whether the policies allow a connection to leave one peer and to enter
// the other. A peer that a policy selects may do only the things that some policy allows.
func leaves(
	t *testing.T, policies []*networkingv1.NetworkPolicy, from, to peer, port corev1.ContainerPort,
) bool {
	t.Helper()
	free := true
	for _, p := range policies {
		if from.namespace != "rondo" || from.labels == nil || !slices.Contains(p.Spec.PolicyTypes,
			networkingv1.PolicyTypeEgress) || !selects(t, &p.Spec.PodSelector, from.labels) {
			continue
		}
		free = false
		for _, rule := range p.Spec.Egress {
			if admits(t, rule.To, to) && opens(rule.Ports, port) {
				return true
			}
		}
	}
	return free
}

func enters(
	t *testing.T, policies []*networkingv1.NetworkPolicy, from, to peer, port corev1.ContainerPort,
) bool {
	t.Helper()
	free := true
	for _, p := range policies {
		if to.namespace != "rondo" || to.labels == nil || !slices.Contains(p.Spec.PolicyTypes,
			networkingv1.PolicyTypeIngress) || !selects(t, &p.Spec.PodSelector, to.labels) {
			continue
		}
		free = false
		for _, rule := range p.Spec.Ingress {
			if admits(t, rule.From, from) && opens(rule.Ports, port) {
				return true
			}
		}
	}
	return free
}

// flows are the connections from or to a pod of the overlay's that its policies let through.
func flows(t *testing.T, objects []metav1.Object) map[string]bool {
	t.Helper()
	var policies []*networkingv1.NetworkPolicy
	for _, o := range objects {
		if p, ok := o.(*networkingv1.NetworkPolicy); ok {
			policies = append(policies, p)
		}
	}
	own := map[string]bool{"worker": true, "coordinator": true, "etcd": true}
	found := map[string]bool{}
	all := peers(objects)
	for _, from := range all {
		for _, to := range all {
			if !own[from.name] && !own[to.name] {
				continue
			}
			for _, port := range to.ports {
				if port.Protocol == "" {
					port.Protocol = corev1.ProtocolTCP
				}
				if leaves(t, policies, from, to, port) && enters(t, policies, from, to, port) {
					found[fmt.Sprintf("%s %s %s %d", from.name, to.name, port.Protocol,
						port.ContainerPort)] = true
				}
			}
		}
	}
	for flow := range found { // a peer that may go anywhere may go here too
		words := strings.Fields(flow)
		if words[1] == "stranger" || words[1] == "other-etcd" {
			words[1] = "elsewhere"
			if found[strings.Join(words, " ")] {
				delete(found, flow)
			}
		}
	}
	return found
}

// The policies allow the connections of the table above, and no others.
func TestFlows(t *testing.T) {
	eachOverlay(t, func(t *testing.T, overlay string, objects []metav1.Object) {
		more, without := besides(overlay)
		want := table(allowed, without)
		maps.Copy(want, table(more, ""))
		got := flows(t, objects)
		for _, flow := range slices.Sorted(maps.Keys(got)) {
			if !want[flow] {
				t.Errorf("allowed, but not in the table: %s", flow)
			}
		}
		for _, flow := range slices.Sorted(maps.Keys(want)) {
			if !got[flow] {
				t.Errorf("in the table, but not allowed: %s", flow)
			}
		}
	})
}

// Every port has a name and a peer that may reach it.
func TestPorts(t *testing.T) {
	eachOverlay(t, func(t *testing.T, overlay string, objects []metav1.Object) {
		reached := kubelet()
		for flow := range flows(t, objects) {
			words := strings.Fields(flow)
			reached = append(reached, words[1]+" "+words[3])
		}
		for _, p := range pods(objects) {
			names := map[string]bool{}
			for _, c := range p.Spec.Containers {
				for _, port := range c.Ports {
					if port.Name == "" || names[port.Name] {
						t.Errorf("%s: port %d has no name of its own", p.Name, port.ContainerPort)
					}
					names[port.Name] = true
					at := fmt.Sprintf("%s %d", component(p), port.ContainerPort)
					if !slices.Contains(reached, at) {
						t.Errorf("%s: nobody reaches port %s", overlay, at)
					}
				}
			}
		}
	})
}

// listens reports whether a pod has the port.
func listens(p corev1.Pod, at intstr.IntOrString) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool {
			return at.Type == intstr.String && port.Name == at.StrVal ||
				at.Type == intstr.Int && port.ContainerPort == at.IntVal
		})
	})
}

// probed are the ports that a container's probes ask.
func probed(c corev1.Container) []intstr.IntOrString {
	var ports []intstr.IntOrString
	for i, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		switch {
		case probe == nil && i < 2:
			ports = append(ports, intstr.FromString("no probe"))
		case probe == nil:
		case probe.GRPC != nil:
			ports = append(ports, intstr.FromInt32(probe.GRPC.Port))
		case probe.HTTPGet != nil:
			ports = append(ports, probe.HTTPGet.Port)
		}
	}
	return ports
}

// Selectors select the pods of one template and name ports that these have; every container answers
// probes.
func TestSelectors(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []metav1.Object) {
		all := pods(objects)
		selected := func(what string, selector *metav1.LabelSelector) []corev1.Pod {
			var found []corev1.Pod
			for _, p := range all {
				if selects(t, selector, p.Labels) {
					found = append(found, p)
				}
			}
			if len(found) != 1 || what[strings.Index(what, " ")+1:] != found[0].Name {
				t.Errorf("%s selects the pods of %d templates", what, len(found))
			}
			return found
		}
		for _, object := range objects {
			switch o := object.(type) {
			case *corev1.Service:
				for _, p := range selected("service "+o.Name, &metav1.LabelSelector{
					MatchLabels: o.Spec.Selector}) {
					for _, port := range o.Spec.Ports {
						if !listens(p, port.TargetPort) {
							t.Errorf("service %s: no port %v", o.Name, &port.TargetPort)
						}
						if component(p) == "coordinator" && port.Name != "http" {
							t.Errorf("service %s: port %s leads to one of two", o.Name, port.Name)
						}
					}
				}
			case *policyv1.PodDisruptionBudget:
				selected("budget "+o.Name, o.Spec.Selector)
			case *appsv1.Deployment:
				selected("deployment "+o.Name, o.Spec.Selector)
			case *appsv1.StatefulSet:
				selected("set "+o.Name, o.Spec.Selector)
			}
		}
		for _, p := range all {
			for _, c := range p.Spec.Containers {
				for _, port := range probed(c) {
					if !listens(p, port) {
						t.Errorf("%s, %s: a probe of port %s", p.Name, c.Name, &port)
					}
				}
			}
		}
	})
}
