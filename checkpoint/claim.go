package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Owner is a process that writes checkpoints into a folder, and the run it belongs to.
//
// A folder has one owner at a time. A process becomes the owner by a claim: a file
// .owner-00000003.json, which only one process can create. The highest number owns the folder. Each
// manifest records its writer's claim, and no writer replaces or deletes what a later claim wrote.
// So a process that was paused, and wakes up after another has become the owner, destroys nothing.
type Owner struct {
	// Run is when the run was submitted, a Unix time in nanoseconds, or a smaller number that the
	// user chose. A run never takes a folder from a run that was submitted later.
	Run     int64     `json:"run"`
	Host    string    `json:"host"`
	Process int       `json:"process"`
	Since   time.Time `json:"since"`
}

// OwnedError says that another process owns a checkpoint folder.
type OwnedError struct {
	Location string
	Owner    Owner
	SameRun  bool // the owner is of the same run
}

func (e *OwnedError) Error() string {
	who := fmt.Sprintf("process %d on host %q, since %s", e.Owner.Process, e.Owner.Host,
		e.Owner.Since.UTC().Format(time.DateTime))
	if e.SameRun {
		return fmt.Sprintf("checkpoint folder %s is now written by %s", e.Location, who)
	}
	return fmt.Sprintf("checkpoint folder %s is written by another run (%s): choose another "+
		"folder, or stop that run first; if it is gone, delete the folder's %s*", e.Location, who,
		claimPrefix)
}

const (
	claimPrefix, claimSuffix = ".owner-", ".json"
	// maxClaim bounds a claim that a file names.
	maxClaim = 1e12
	// maxClaimBytes bounds the memory for an owner's file.
	maxClaimBytes = 4 << 10
	// claimAttempts bounds the claims that other processes make first.
	claimAttempts = 100
	// submissionTime is a Unix time in nanoseconds, in 2001. A smaller Owner.Run is no time.
	submissionTime = 1e18
)

func claimName(claim int64) string {
	return fmt.Sprintf("%s%08d%s", claimPrefix, claim, claimSuffix)
}

// parseClaimName is the inverse of claimName.
func parseClaimName(name string) (claim int64, ok bool) {
	digits := strings.TrimSuffix(strings.TrimPrefix(name, claimPrefix), claimSuffix)
	claim, err := strconv.ParseInt(digits, 10, 64)
	return claim, err == nil && claim > 0 && claim <= maxClaim && claimName(claim) == name
}

// claims is a store's part in who owns the folder.
type claims struct {
	place place
	owner *Owner // this process; nil: it claims nothing
	now   func() time.Time
	// manifests returns the highest claim that a checkpoint of the folder was written under.
	manifests func(context.Context) (int64, error)

	claiming sync.Mutex
	newest   atomic.Int64 // the newest claim of this process; 0: none
}

// Claim makes the store's process the owner of the folder. It does nothing if it is that already.
// The first Save, Retain or Remove calls it; a process that becomes its run's writer once more
// calls it again. If another run owns the folder, the error is an *OwnedError.
func (s *Store) Claim(ctx context.Context) error { return s.claims.take(ctx) }

// Refused returns an *OwnedError if another run owns the folder and keeps it. A run asks before it
// begins.
func (s *Store) Refused(ctx context.Context) error {
	newest, _, owner, err := s.claims.look(ctx)
	if err != nil || s.claims.owner == nil {
		return err
	}
	return s.claims.check(ctx, newest, owner)
}

// take is Store.Claim.
func (c *claims) take(ctx context.Context) error {
	c.claiming.Lock()
	defer c.claiming.Unlock()
	if c.owner == nil {
		return nil
	}
	for range claimAttempts {
		newest, claims, owner, err := c.look(ctx)
		if err != nil {
			return err
		}
		if newest > 0 && newest == c.newest.Load() {
			return nil
		}
		if err := c.check(ctx, newest, owner); err != nil {
			return err
		}
		err = c.create(ctx, newest+1)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("claim checkpoint folder %s: %w", c.place.at(""), err)
		}
		for _, old := range claims { // the highest one counts
			if err := c.place.removeClaim(ctx, claimName(old)); err != nil {
				return fmt.Errorf("remove an old claim on %s: %w", c.place.at(""), err)
			}
		}
		return nil
	}
	return fmt.Errorf("claim checkpoint folder %s: %d other processes came first: stop the other "+
		"runs that write there", c.place.at(""), claimAttempts)
}

// create creates a claim, and makes it the store's. If it exists the error is fs.ErrExist.
func (c *claims) create(ctx context.Context, claim int64) error {
	owner := *c.owner
	owner.Since = c.now()
	text, err := json.Marshal(owner)
	if err != nil {
		return err
	}
	if err := c.place.createClaim(ctx, claimName(claim), text); err != nil {
		return err
	}
	c.newest.Store(claim)
	return nil
}

// list returns the highest claim on the folder, 0 if there is none, and those with a file. Without
// files the manifests tell: a copy of the folder may lack the files.
func (c *claims) list(ctx context.Context) (newest int64, claims []int64, err error) {
	names, err := c.place.listClaims(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("list the owners of %s: %w", c.place.at(""), err)
	}
	for _, name := range names {
		if claim, ok := parseClaimName(name); ok {
			claims, newest = append(claims, claim), max(newest, claim)
		}
	}
	if own := c.newest.Load(); newest > 0 || own > 0 {
		return max(newest, own), claims, nil
	}
	newest, err = c.manifests(ctx)
	return newest, nil, err
}

// look is list, and reads the owner; the zero Owner if this process owns the folder. The file of a
// new owner may be empty, or give way to a newer one's: look tries again for lockPatience.
func (c *claims) look(ctx context.Context) (
	newest int64, claims []int64, owner Owner, err error) {
	patience := time.After(lockPatience)
	for {
		newest, claims, err = c.list(ctx)
		if err != nil || newest == 0 || newest == c.newest.Load() {
			return newest, claims, Owner{}, err
		}
		owner, err = c.read(ctx, newest)
		if err != nil || owner != (Owner{}) || !slices.Contains(claims, newest) {
			return newest, claims, owner, err
		}
		select {
		case <-time.After(lockInterval):
		case <-patience:
			return newest, claims, owner, nil
		case <-ctx.Done():
			return 0, nil, Owner{}, ctx.Err()
		}
	}
}

// check returns an *OwnedError if the folder's owner is of another run that keeps it: a later one,
// one that took the folder from this store, or one whose process lives on this machine.
func (c *claims) check(ctx context.Context, newest int64, owner Owner) error {
	if newest == 0 || owner.Run == c.owner.Run {
		return nil
	}
	own := c.owner.Run
	keeps := c.newest.Load() > 0
	if min(owner.Run, own) >= submissionTime {
		keeps = owner.Run > own
	}
	if !keeps {
		var err error
		if keeps, err = c.place.claimHeld(ctx, claimName(newest)); err != nil {
			return err
		}
	}
	if keeps {
		return &OwnedError{c.place.at(""), owner, false}
	}
	return nil
}

// read reads an owner's file. The owner of a file that a dying process left empty, or that was
// removed meanwhile, is the zero Owner.
func (c *claims) read(ctx context.Context, claim int64) (owner Owner, err error) {
	r, _, err := c.place.open(ctx, "", claimName(claim))
	if errors.Is(err, fs.ErrNotExist) {
		return Owner{}, nil
	}
	if err != nil {
		return Owner{}, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxClaimBytes))
	if err != nil {
		return Owner{}, err
	}
	if json.Unmarshal(text, &owner) != nil {
		return Owner{}, nil
	}
	return owner, nil
}

// mayAdd is hold for a process that replaces and deletes nothing of others. Another process of the
// run may own the folder.
func (c *claims) mayAdd(ctx context.Context) error {
	if err := c.hold(ctx); !ofSameRun(err) {
		return err
	}
	return nil
}

// ofSameRun reports whether a process of the same run owns the folder.
func ofSameRun(err error) bool {
	var owned *OwnedError
	return errors.As(err, &owned) && owned.SameRun
}

// hold checks before a change that this store's process owns the folder. The first call claims it.
func (c *claims) hold(ctx context.Context) error {
	own := c.newest.Load()
	if c.owner == nil {
		return nil
	}
	if own == 0 {
		return c.take(ctx)
	}
	newest, _, owner, err := c.look(ctx)
	if err != nil || newest == own {
		return err
	}
	return &OwnedError{c.place.at(""), owner, owner.Run == c.owner.Run}
}

// highestClaim returns the highest claim that a sound manifest records.
func (s *Store) highestClaim(ctx context.Context) (highest int64, err error) {
	steps, err := s.Steps(ctx)
	for _, step := range steps {
		c := &Checkpoint{place: s.place, folder: stepFolder(step)}
		if m, err := c.readManifest(ctx); err == nil {
			highest = max(highest, m.Claim)
		}
	}
	return highest, err
}
