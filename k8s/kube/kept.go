package kube

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// annotate sets an annotation of an object.
func annotate(object *unstructured.Unstructured, name, value string) {
	notes := object.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes[name] = value
	object.SetAnnotations(notes)
}

// run returns the number of the submission's run, as annotations have it.
func (s *Submission) run() string { return strconv.FormatInt(s.Run, 10) }

// keep writes the submission into the annotations of the spec's ConfigMap, which outlives the
// workers.
func (s *Submission) keep(spec *unstructured.Unstructured) error {
	var kept strings.Builder
	encoder := json.NewEncoder(&kept)
	encoder.SetEscapeHTML(false) // URLs stay as a person wrote them
	if err := encoder.Encode(s); err != nil {
		return err
	}
	annotate(spec, annotationRun, s.run())
	annotate(spec, annotationSubmission, strings.TrimSpace(kept.String()))
	return nil
}

// keptIn reads the submission from a ConfigMap. It returns nil if there is none.
func keptIn(spec *corev1.ConfigMap) (*Submission, error) {
	text, kept := spec.Annotations[annotationSubmission]
	if !kept {
		return nil, nil
	}
	s := &Submission{}
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("%s of configmap %s cannot be read: %w", annotationSubmission,
			spec.Name, err)
	}
	return s, nil
}
