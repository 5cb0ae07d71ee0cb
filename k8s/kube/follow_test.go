package kube

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"rondo/k8s/kube/kubetest"
)

// follow stays with run 7 of a patient, to whom things happen after so long.
func follow(t *testing.T, p *patient, timeout time.Duration,
	happens map[time.Duration]func(p *patient),
) (said []string, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client := kubetest.New(p.job, p.coordinator, p.etcd)
		for _, pod := range p.pods {
			check(t, client.Objects.Add(pod))
		}
		var one sync.Mutex
		for after, change := range happens {
			go func() {
				time.Sleep(after)
				one.Lock()
				defer one.Unlock()
				change(p)
				for _, pod := range p.pods {
					_ = client.Objects.Update(corev1.SchemeGroupVersion.WithResource("pods"),
						pod, "music")
				}
				_ = client.Objects.Update(batchv1.SchemeGroupVersion.WithResource("jobs"),
					p.job, "music")
			}()
		}
		c := &Cluster{Client: client, Namespace: "music"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err = c.Follow(ctx, "song", 7, timeout, func(line string) { said = append(said, line) })
		time.Sleep(time.Hour) // until all that was to happen has
	})
	return said, err
}

func TestFollowToTheFirstStep(t *testing.T) {
	p := healthy()
	p.pods[0].Status.Phase = corev1.PodPending
	said, err := follow(t, p, time.Minute, map[time.Duration]func(p *patient){
		3500 * time.Millisecond: func(p *patient) { p.pods[0].Status.Phase = corev1.PodRunning },
		5500 * time.Millisecond: func(p *patient) {
			p.job.Annotations[annotations+"world-size"] = "2"
		},
		// What an observer of the run before may still write does not count.
		7500 * time.Millisecond: func(p *patient) {
			p.job.Annotations[annotations+"step"] = "90"
			p.job.Annotations[annotations+"phase"] = "ended"
		},
		9500 * time.Millisecond: func(p *patient) {
			p.job.Annotations[annotations+"step"] = "1"
			p.job.Annotations[annotations+"phase"] = "running"
		},
	})
	check(t, err)
	want := []string{
		"   0.0 s  etcd 3/3, coordinators 0/2, workers 1/2 run (2 made, 2 on a node)",
		"   4.0 s  etcd 3/3, coordinators 0/2, workers 2/2 run, 0 joined",
		"   6.0 s  etcd 3/3, coordinators 0/2, workers 2/2 run, 2 joined",
		"  10.0 s  the first step is done (step 1)"}
	if strings.Join(said, "\n") != strings.Join(want, "\n") {
		t.Errorf("it says\n%s", strings.Join(said, "\n"))
	}
}

func TestFollowToTheEnd(t *testing.T) {
	p := healthy()
	p.job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete,
		Status: corev1.ConditionTrue}}
	said, err := follow(t, p, time.Minute, nil)
	if err != nil || !strings.HasSuffix(said[len(said)-1], "has ended: all steps are done") {
		t.Errorf("%q, %v", said, err)
	}
}

func TestFollowEndsWhereWaitingIsOfNoUse(t *testing.T) {
	p := healthy()
	p.waiting("ErrImageNeverPull", "")
	began := time.Now()
	_, err := follow(t, p, time.Hour, nil)
	wants(t, err, "pod/song-worker-0-aaaaa: ErrImageNeverPull: image rondo:1; load")
	if time.Since(began) > time.Minute {
		t.Error("it waited for long")
	}

	p = healthy()
	p.waiting("ErrImageNeverPull", "")
	_, err = follow(t, p, 20*time.Second, map[time.Duration]func(p *patient){
		// The image is loaded just in time.
		3500 * time.Millisecond: func(p *patient) {
			p.pods[0].Status = *p.pods[1].Status.DeepCopy()
		},
	})
	wants(t, err, "job song has made no step in 20s: etcd 3/3")

	p = healthy()
	p.unplaced("0/3 nodes are available: 3 Insufficient cpu.")
	said, err := follow(t, p, 20*time.Second, nil)
	wants(t, err, "no step in 20s: pod/song-worker-0-aaaaa: no node takes it")
	if n := strings.Count(strings.Join(said, "\n"), "no node takes it"); n != 1 {
		t.Errorf("the problem is said %d times", n)
	}
}

func TestFollowAQueue(t *testing.T) {
	p := healthy()
	yes := true
	p.job.Spec.Suspend, p.pods = &yes, nil
	p.job.Labels[labelQueue] = "team"
	_, err := follow(t, p, 20*time.Second, nil)
	wants(t, err, "workers are suspended: Kueue admits it when queue team has room")
}
