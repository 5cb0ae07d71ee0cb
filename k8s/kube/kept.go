package kube

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"rondo/internal/app"
)

// A submission is stored in the workers' annotations, and in those of the spec's ConfigMap, which
// outlives the workers.

// keep writes the submission into an object's annotations.
func (s *Submission) keep(object *unstructured.Unstructured) error {
	var kept strings.Builder
	encoder := json.NewEncoder(&kept)
	encoder.SetEscapeHTML(false) // URLs stay as a person wrote them
	if err := encoder.Encode(s); err != nil {
		return err
	}
	notes := object.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes[annotationRun] = strconv.FormatInt(s.Run, 10)
	notes[annotationSubmission] = strings.TrimSpace(kept.String())
	object.SetAnnotations(notes)
	return nil
}

// keptIn reads the submission from annotations. It returns nil if there is none.
func keptIn(object, name string, notes map[string]string) (*Submission, error) {
	text, kept := notes[annotationSubmission]
	if !kept {
		return nil, nil
	}
	s := &Submission{}
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("%s of %s %s cannot be read: %w", annotationSubmission, object, name,
			err)
	}
	return s, nil
}

// submissionOf reads the submission from the annotations of a job's workers.
func submissionOf(workers *unstructured.Unstructured) (*Submission, error) {
	kind := strings.ToLower(workers.GetKind())
	s, err := keptIn(kind, workers.GetName(), workers.GetAnnotations())
	if s == nil && err == nil {
		return nil, app.Usagef("%s %s was not made by rondo submit: submit it anew", kind,
			workers.GetName())
	}
	return s, err
}
