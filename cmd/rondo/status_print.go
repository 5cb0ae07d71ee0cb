package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"

	"rondo/internal/printable"
	"rondo/k8s/kube"
)

// maxReason is the number of letters of a reason in a table.
const maxReason = 70

// printStatuses writes a line for each job.
func (o statusOptions) printStatuses(
	out io.Writer, statuses []kube.JobStatus, now time.Time,
) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if o.everywhere {
		fmt.Fprint(table, "NAMESPACE\t")
	}
	fmt.Fprint(table, "JOB\tPHASE\tWORKERS\tSTEP\tLOSS/PPL\tTOKENS/S\tAGE\t")
	if o.wide() {
		fmt.Fprint(table, "EPOCH\tGENERATION\tHEARD\tQUEUE\tCHECKPOINT\t")
	}
	fmt.Fprintln(table, "REASON")
	for _, s := range statuses {
		if o.everywhere {
			fmt.Fprint(table, s.Namespace+"\t")
		}
		ring := strconv.Itoa(s.Ring)
		if s.Unknown() {
			ring = "?"
		}
		fmt.Fprintf(table, "%s\t%s\t%s/%d\t%s\t%s\t%s\t%s\t", s.Job, s.Phase, ring, s.Wanted,
			steps(s), figures(s), speed(s), age(s.Created, now))
		reason := cut(s.Reason, maxReason)
		if o.wide() {
			reason = s.Reason
			fmt.Fprint(table, wideColumns(s, now))
		}
		fmt.Fprintln(table, reason)
	}
	return table.Flush()
}

// wideColumns returns the additional columns of a job, each with a tab behind it.
func wideColumns(s kube.JobStatus, now time.Time) string {
	heard, checkpoint := "-", "-"
	if s.Updated != nil {
		heard = age(*s.Updated, now)
	}
	if s.Checkpoint != "" {
		checkpoint = fmt.Sprintf("%d, %s", s.CheckpointStep, s.Checkpoint)
	}
	return fmt.Sprintf("%d\t%d\t%s\t%s\t%s\t", s.Epoch, s.Generation, heard, dash(s.Queue),
		checkpoint)
}

func steps(s kube.JobStatus) string {
	if s.Step == 0 {
		return "-"
	}
	if s.TotalSteps == 0 {
		return strconv.FormatInt(s.Step, 10)
	}
	return fmt.Sprintf("%d/%d", s.Step, s.TotalSteps)
}

func figures(s kube.JobStatus) string {
	switch {
	case s.Loss == nil:
		return "-"
	case s.Perplexity == nil:
		return fmt.Sprintf("%.3f", *s.Loss)
	}
	return fmt.Sprintf("%.3f/%.2f", *s.Loss, *s.Perplexity)
}

// speed returns the tokens per second of a job that trains.
func speed(s kube.JobStatus) string {
	if s.TokensPerSecond == nil || s.Ring == 0 {
		return "-"
	}
	switch x := *s.TokensPerSecond; {
	case x >= 1e6:
		return fmt.Sprintf("%.1fM", x/1e6)
	case x >= 1e4:
		return fmt.Sprintf("%.0fk", x/1e3)
	case x >= 1e3:
		return fmt.Sprintf("%.1fk", x/1e3)
	default:
		return fmt.Sprintf("%.0f", x)
	}
}

func age(since, now time.Time) string {
	if since.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(since))
}

func cut(text string, letters int) string {
	if runes := []rune(text); len(runes) > letters {
		return string(runes[:letters-1]) + "…"
	}
	return text
}

// printStatus writes one job in detail.
func (o statusOptions) printStatus(out io.Writer, s kube.JobStatus, now time.Time) error {
	var text strings.Builder
	fmt.Fprintf(&text, "job %s in namespace %s: %s\n", s.Job, s.Namespace, standing(s))
	line := func(name, format string, a ...any) {
		fmt.Fprintf(&text, "  %-13s"+format+"\n", append([]any{name}, a...)...)
	}
	if s.Reason != "" && !s.Unknown() {
		line("reason", "%s", s.Reason)
	}
	if s.Step > 0 {
		line("step", "%s", progress(s))
	}
	if s.Checkpoint != "" {
		line("checkpoint", "step %d, %s", s.CheckpointStep, s.Checkpoint)
	}
	line("age", "%s", age(s.Created, now)+lastHeard(s, now))
	if s.Queue != "" {
		line("queue", "%s (Kueue)", s.Queue)
	}
	if s.JobSet != "" {
		line("jobset", "%s", s.JobSet)
	}
	if d := s.Detail; d != nil {
		line("coordinators", "%s", coordinators(d))
		if d.Etcd != nil {
			line("etcd", "%d of %d members ready", d.Etcd.Ready, d.Etcd.Of)
		}
		if err := o.printPods(&text, d.Workers, now); err != nil {
			return err
		}
		printProblems(&text, d.Problems)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// standing returns a job's phase and its numbers of workers.
func standing(s kube.JobStatus) string {
	if s.Unknown() {
		return fmt.Sprintf("%s, %s", s.Phase, s.Reason)
	}
	text := fmt.Sprintf("%s, %s", s.Phase, kube.InRing(s.Ring, s.Wanted))
	if s.Generation > 0 {
		text += fmt.Sprintf(", generation %d", s.Generation)
	}
	return text
}

// progress returns a job's step and figures.
func progress(s kube.JobStatus) string {
	parts := []string{strings.Replace(steps(s), "/", " of ", 1)}
	if s.Epoch > 0 {
		parts[0] += fmt.Sprintf(" (epoch %d)", s.Epoch)
	}
	if s.Detail != nil && s.Detail.Limit != "" {
		parts = append(parts, s.Detail.Limit)
	}
	if s.Loss != nil {
		parts = append(parts, fmt.Sprintf("loss %.3f", *s.Loss))
	}
	if s.Perplexity != nil {
		parts = append(parts, fmt.Sprintf("perplexity %.2f", *s.Perplexity))
	}
	if now := speed(s); now != "-" {
		parts = append(parts, now+" tokens/s")
	}
	if s.Detail != nil && s.Detail.SecondsLeft != nil {
		left := time.Duration(*s.Detail.SecondsLeft * float64(time.Second))
		parts = append(parts, duration.HumanDuration(left)+" left")
	}
	return strings.Join(parts, ", ")
}

func lastHeard(s kube.JobStatus, now time.Time) string {
	switch {
	case s.Updated == nil:
		return ", not heard of yet"
	case s.Ended():
		return ", ended " + age(*s.Updated, now) + " ago"
	}
	return ", heard of " + age(*s.Updated, now) + " ago"
}

func coordinators(d *kube.Detail) string {
	ready := 0
	for _, c := range d.Coordinators {
		if c.Ready {
			ready++
		}
	}
	text := fmt.Sprintf("%d of %d ready", ready, len(d.Coordinators))
	if d.Leader != "" {
		text += ", led by " + d.Leader
	}
	return text
}

// printPods writes a table of the workers.
func (o statusOptions) printPods(out io.Writer, pods []kube.PodStatus, now time.Time) error {
	if len(pods) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	address := func(p string) string {
		if o.wide() {
			return p + "\t"
		}
		return ""
	}
	fmt.Fprintln(table, "\nINDEX\tRANK\tLANES\tPOD\t"+address("IP")+
		"NODE\tPHASE\tREADY\tRESTARTS\tAGE\tMEMORY\tLAST END")
	for _, p := range pods {
		rank, lanes := "-", "-"
		if p.Rank != nil {
			rank, lanes = strconv.Itoa(*p.Rank), fmt.Sprintf("[%d, %d)", p.Lanes[0], p.Lanes[1])
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s%s\t%s\t%s\t%d\t%s\t%s\t%s\n", *p.Index, rank,
			lanes, p.Pod, address(dash(p.IP)), dash(p.Node), p.Phase, yesNo(p.Ready), p.Restarts,
			age(p.Created, now), dash(p.Memory), dash(cut(p.LastEnd, maxReason)))
	}
	return table.Flush()
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func printProblems(out io.Writer, problems []kube.Problem) {
	if len(problems) == 0 {
		return
	}
	fmt.Fprintln(out, "\nproblems:")
	for _, p := range problems {
		fmt.Fprintf(out, "  %s: %s\n", p.Object, p.Text)
		if p.Remedy != "" {
			fmt.Fprintf(out, "    remedy: %s\n", p.Remedy)
		}
	}
}

// redraw replaces the last look. It cuts lines to the terminal's width, so that it knows their
// number.
func (v *statusView) redraw(statuses []kube.JobStatus, one bool, now time.Time) error {
	var text bytes.Buffer
	if err := v.options.print(&text, statuses, one, now); err != nil {
		return err
	}
	width, height, err := term.GetSize(int(v.terminal.Fd()))
	if err != nil || width < 2 || height < 2 {
		width, height = 80, 24
	}
	lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
	if len(lines) > height-1 {
		lines = lines[:height-1]
	}
	var screen strings.Builder
	if v.lines > 0 {
		fmt.Fprintf(&screen, "\x1b[%dA\x1b[J", v.lines)
	}
	for _, line := range lines {
		screen.WriteString(cut(printable.Text(line), width-1) + "\n")
	}
	v.lines = len(lines)
	_, err = io.WriteString(v.terminal, screen.String())
	return err
}

// append writes each job's new state and new problems, with the time. It writes a reason once.
func (v *statusView) append(statuses []kube.JobStatus, now time.Time) error {
	said := map[string]bool{}
	for _, s := range statuses {
		name := s.Job
		if v.options.everywhere {
			name = s.Namespace + "/" + s.Job
		}
		line := fmt.Sprintf("job %s: %s", name, standing(s))
		if s.Step > 0 {
			line += ", step " + progress(kube.JobStatus{Step: s.Step, TotalSteps: s.TotalSteps,
				Loss: s.Loss, Perplexity: s.Perplexity, TokensPerSecond: s.TokensPerSecond,
				Ring: s.Ring})
		}
		said[line] = true
		if s.Reason != "" && !s.Unknown() && s.Reason != v.reasons[name] {
			said["job "+name+": "+s.Reason] = true
			v.reasons[name] = s.Reason
		}
		if s.Detail == nil {
			continue
		}
		for _, p := range s.Detail.Problems {
			said["job "+name+": "+p.String()] = true
		}
	}
	var err error
	for _, line := range slices.Sorted(maps.Keys(said)) {
		if !v.told[line] && err == nil {
			_, err = fmt.Fprintf(v.out, "%s %s\n", now.Format(time.TimeOnly), line)
		}
	}
	v.told = said
	return err
}
