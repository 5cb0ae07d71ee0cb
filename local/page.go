package local

import (
	"context"
	"fmt"

	"rondo/cluster"
	"rondo/telemetry"
)

// A Page is the job's web page.
type Page interface {
	URL() string
	// Show shows an event of the job.
	Show(e telemetry.Event)
	// Serve answers browsers until ctx ends.
	Serve(ctx context.Context, store cluster.Viewer) error
}

// openPage serves the job's web page until closePage is called. closePage waits until the server
// has ended. If the page cannot be served, openPage logs that and the job goes on.
func (r Run) openPage(ctx context.Context, store cluster.Viewer) (page Page, closePage func()) {
	if r.OpenPage == nil {
		return nil, func() {}
	}
	page, err := r.OpenPage(ctx, r.Spec)
	if err != nil {
		r.Log(fmt.Sprintf("the job trains without a web page: %v", err))
		return nil, func() {}
	}
	if err := r.Show(ctx, telemetry.Page{URL: page.URL()}); err != nil {
		r.Log(fmt.Sprintf("showing the page's address: %v", err))
	}
	// After Ctrl-C the job still saves, so the page stays until the job has ended.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := page.Serve(life, store); err != nil {
			r.Log(fmt.Sprintf("the job trains on without its web page: %v", err))
		}
	}()
	return page, func() {
		end()
		<-served
	}
}

// showOnPage shows an event on the web page, if there is one.
func (r Run) showOnPage(e telemetry.Event) {
	if r.page != nil {
		r.page.Show(e)
	}
}
