package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// errNotOfCluster: the address is none of a pod or a Service.
var errNotOfCluster = errors.New("no running pod and no Service has this address")

// A podPort is a port of a pod.
type podPort struct {
	namespace, pod string
	port           int
}

// Network and String make it a net.Addr.
func (podPort) Network() string { return "tcp" }

func (p podPort) String() string { return fmt.Sprintf("pod %s, port %d", p.pod, p.port) }

// resolve finds the pod that an address within the cluster leads to.
func (c *Cluster) resolve(ctx context.Context, address string) (podPort, error) {
	host, digits, err := net.SplitHostPort(address)
	if err != nil {
		return podPort{}, fmt.Errorf("address %q is not host:port: %w", address, err)
	}
	port, err := strconv.Atoi(digits)
	if err != nil {
		return podPort{}, fmt.Errorf("address %q: %q is not the number of a port", address, digits)
	}
	if net.ParseIP(host) != nil {
		return c.podOfIP(ctx, host, port)
	}
	name := strings.Split(host, ".")
	if i := slices.Index(name, "svc"); i > 0 {
		name = name[:i] // the rest is the cluster's domain
	}
	switch len(name) {
	case 1:
		return c.podOfService(ctx, c.Namespace, name[0], port)
	case 2:
		to, err := c.podOfName(ctx, c.Namespace, name, port)
		if errors.Is(err, errNotOfCluster) {
			return c.podOfService(ctx, name[1], name[0], port)
		}
		return to, err
	case 3:
		return c.podOfName(ctx, name[2], name, port)
	}
	return podPort{}, errNotOfCluster
}

// podOfIP finds the pod that has an address now.
func (c *Cluster) podOfIP(ctx context.Context, ip string, port int) (podPort, error) {
	list, err := c.Client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("status.podIP", ip).String()})
	if err != nil {
		return podPort{}, Explain(err, "looking for the pod at "+ip)
	}
	for _, pod := range list.Items {
		if pod.Status.PodIP == ip && pod.Status.Phase == corev1.PodRunning {
			return podPort{pod.Namespace, pod.Name, port}, nil
		}
	}
	return podPort{}, errNotOfCluster
}

// podOfName finds the pod that a headless Service gives the name POD.SERVICE.
func (c *Cluster) podOfName(ctx context.Context, namespace string, name []string, port int) (
	podPort, error) {
	pod, err := c.Client.CoreV1().Pods(namespace).Get(ctx, name[0], metav1.GetOptions{})
	if err == nil {
		if pod.Status.Phase != corev1.PodRunning {
			return podPort{}, fmt.Errorf("pod %s is %s: it takes no connections", pod.Name,
				strings.ToLower(string(pod.Status.Phase)))
		}
		return podPort{namespace, pod.Name, port}, nil
	}
	doing := "looking for pod " + name[0]
	if !apierrors.IsNotFound(err) {
		return podPort{}, Explain(err, doing)
	}
	_, noService := c.Client.CoreV1().Services(namespace).Get(ctx, name[1], metav1.GetOptions{})
	if apierrors.IsNotFound(noService) {
		return podPort{}, errNotOfCluster
	}
	return podPort{}, Explain(err, doing)
}

// podOfService finds a ready pod behind a Service, and the port of it that the Service means.
func (c *Cluster) podOfService(ctx context.Context, namespace, name string, port int) (
	podPort, error) {
	service, err := c.Client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return podPort{}, errNotOfCluster
	}
	if err != nil {
		return podPort{}, Explain(err, "looking for Service "+name)
	}
	if len(service.Spec.Selector) == 0 {
		return podPort{}, fmt.Errorf("there is no way to Service %s from outside the cluster: "+
			"it selects no pods", name)
	}
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(service.Spec.Selector).String()})
	if err != nil {
		return podPort{}, Explain(err, "listing the pods of Service "+name)
	}
	for _, pod := range list.Items {
		if ready(&pod) {
			return podPort{namespace, pod.Name, targetPort(service, &pod, port)}, nil
		}
	}
	return podPort{}, fmt.Errorf("none of the %d pods of Service %s is ready", len(list.Items),
		name)
}

// ready reports whether a pod takes requests.
func ready(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// targetPort is the pod's port behind a port of the Service.
func targetPort(service *corev1.Service, pod *corev1.Pod, port int) int {
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return int(p.Port) == port
	})
	if i < 0 {
		return port // headless Services forward every port
	}
	target := service.Spec.Ports[i].TargetPort
	if target.Type == intstr.Int {
		if target.IntVal == 0 {
			return port
		}
		return int(target.IntVal)
	}
	for _, container := range pod.Spec.Containers {
		for _, p := range container.Ports {
			if p.Name == target.StrVal {
				return int(p.ContainerPort)
			}
		}
	}
	return port
}
