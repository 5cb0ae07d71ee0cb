package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An Event is an event of the workers' Job, as `kubectl describe job` shows it.
type Event struct {
	Warning bool
	Reason  string // one word, for programs
	Text    string
	Once    string // names an event that several observers may tell; empty: each is another event
}

// maxEventText is the API's limit on an event's message, in bytes.
const maxEventText = 1024

// Tell records an event of the Job. The Job must have been annotated before, so that its identity
// is known.
func (j *WorkerJob) Tell(ctx context.Context, e Event, now time.Time) error {
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	if len(e.Text) > maxEventText {
		const cut = "..."
		e.Text = strings.ToValidUTF8(e.Text[:maxEventText-len(cut)], "") + cut
	}
	name := e.Once
	if name == "" {
		name = fmt.Sprintf("%x", now.UnixNano())
	}
	at := metav1.NewTime(now)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := j.client.CoreV1().Events(j.namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: j.namespace,
			Name: j.name + "." + name},
		InvolvedObject: corev1.ObjectReference{Kind: "Job", Namespace: j.namespace, Name: j.name,
			APIVersion: batchv1.SchemeGroupVersion.String(), UID: j.uid},
		Type: kind, Reason: e.Reason, Message: e.Text, Count: 1, FirstTimestamp: at,
		LastTimestamp: at, Source: corev1.EventSource{Component: observerManager},
	}, metav1.CreateOptions{FieldManager: observerManager})
	if e.Once != "" && apierrors.IsAlreadyExists(err) {
		return nil
	}
	return Explain(err, fmt.Sprintf("recording an event of job %s/%s", j.namespace, j.name))
}
