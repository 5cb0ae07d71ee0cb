package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// explained is an error whose text names a remedy. It wraps the cluster's own error.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// Explain turns an error of client-go into one line: the activity ("creating job-worker"), why it
// failed, and the remedy. Callers can still branch on err.
func Explain(err error, doing string) error {
	if err == nil {
		return nil
	}
	var done *explained
	if errors.Is(err, context.Canceled) || errors.As(err, &done) {
		return err
	}
	if text, known := unreachable(err); known {
		return &explained{text: doing + ": " + text, err: err}
	}
	if meta.IsNoMatchError(err) {
		return &explained{text: doing + ": " + noMatch(err), err: err}
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		what, remedy := refused(status.Status())
		return &explained{text: join(doing+": "+what, remedy), err: err}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// join appends a remedy to a fault.
func join(what, remedy string) string {
	if remedy == "" {
		return what
	}
	return what + "; " + remedy
}

// unreachable returns why the API server was not reached. known is false if the error has another
// cause.
func unreachable(err error) (why string, known bool) {
	server := "the cluster"
	var request *url.Error
	if errors.As(err, &request) {
		if u, parsed := url.Parse(request.URL); parsed == nil {
			server = fmt.Sprintf("the cluster at %s://%s", u.Scheme, u.Host)
		}
	}
	const which = "is it the right cluster (--kubeconfig, --context)?"
	var timeout net.Error
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return fmt.Sprintf("%s shows a certificate that the kubeconfig does not trust (%v): fetch "+
			"a new kubeconfig; %s", server, deepest(err), which), true
	case errors.Is(err, context.DeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return server + " does not answer in time: is it reachable from here (VPN, firewall)? " +
			which, true
	case errors.As(err, &request):
		return fmt.Sprintf("%s: %v: %s", server, deepest(err), which), true
	}
	return "", false
}

// deepest returns the innermost error, which has the shortest text.
func deepest(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

// refused explains a status of the API server, and returns the remedy.
func refused(s metav1.Status) (what, remedy string) {
	switch s.Reason {
	case metav1.StatusReasonUnauthorized:
		return "the cluster does not know who you are: the kubeconfig's credentials are missing, " +
				"wrong or have expired", "log in again (as your cluster has it), or fetch a new " +
				"kubeconfig"
	case metav1.StatusReasonNotFound:
		return notFound(s)
	case metav1.StatusReasonConflict:
		if s.Details == nil || len(s.Details.Causes) == 0 {
			return "the object was changed meanwhile", "try again"
		}
		return complaints(s), "undo that change, or remove the object (rondo delete) and submit " +
			"again"
	case metav1.StatusReasonInvalid:
		what = complaints(s)
		remedy, _ = remedyOf(what)
		return what, remedy
	case metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonServiceUnavailable:
		return "the cluster is too busy (" + s.Message + ")", "try again in a minute"
	}
	remedy, _ = remedyOf(s.Message)
	return oneLine(s.Message), remedy
}

func notFound(s metav1.Status) (what, remedy string) {
	if s.Details == nil || s.Details.Name == "" {
		return "the cluster has no such resource (" + s.Message + ")",
			"it is older than Rondo needs (Kubernetes 1.31)"
	}
	if s.Details.Kind == "namespaces" {
		return fmt.Sprintf("there is no namespace %s", s.Details.Name),
			fmt.Sprintf("kubectl create namespace %s, or give another --namespace", s.Details.Name)
	}
	return fmt.Sprintf("there is no %s %s", strings.TrimSuffix(s.Details.Kind, "s"),
		s.Details.Name), ""
}

// maxValueShown is the length of a complaint, in bytes, above which it is shortened.
const maxValueShown = 200

// complaints lists the faulty fields of an object. Kubernetes prints a field's whole value, which
// can be long, before the words that name the fault.
func complaints(s metav1.Status) string {
	if s.Details == nil || len(s.Details.Causes) == 0 {
		return oneLine(s.Message)
	}
	var all []string
	for _, cause := range s.Details.Causes {
		text := cause.Message
		if at := strings.LastIndex(text, ": "); at >= 0 && len(text) > maxValueShown {
			text = text[at+2:]
		}
		all = append(all, strings.TrimSpace(cause.Field+": "+text))
	}
	return fmt.Sprintf("%s %s is refused: %s", s.Details.Kind, s.Details.Name,
		strings.Join(all, "; "))
}

// noMatch names the missing custom resource and the software that has it.
func noMatch(err error) string {
	var missing *meta.NoKindMatchError
	if !errors.As(err, &missing) {
		return err.Error()
	}
	from := map[string]string{
		"JobSet":         "install JobSet (https://jobset.sigs.k8s.io), or leave out --jobset",
		"ServiceMonitor": "install the Prometheus operator, or leave out --monitoring",
		"PodMonitor":     "install the Prometheus operator, or leave out --monitoring",
		"PrometheusRule": "install the Prometheus operator, or leave out --monitoring",
	}[missing.GroupKind.Kind]
	if from == "" {
		from = "install what brings it"
	}
	return fmt.Sprintf("the cluster has no kind %s (%s): %s", missing.GroupKind.Kind,
		missing.GroupKind.Group, from)
}
