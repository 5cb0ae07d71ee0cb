package etcdmember

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"google.golang.org/protobuf/proto"
)

// memberFolder is what etcd makes in a data folder; its log says whose data they are.
const memberFolder = "member"

// readDisk returns whose data a folder holds. A folder without etcd's log has never been used:
// etcd writes to its log before it says anything to anybody.
func readDisk(data string) (disk, error) {
	logs := filepath.Join(data, memberFolder, "wal")
	names, err := filepath.Glob(filepath.Join(logs, "*.wal"))
	if err != nil {
		return disk{}, fmt.Errorf("--data: %w", err)
	}
	if _, err := os.ReadDir(logs); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return disk{}, fmt.Errorf("--data: %w: the folder must be this process's user's", err)
	}
	if len(names) == 0 {
		return disk{}, clearDisk(data) // of what a start or a deletion that was cut short has left
	}
	file, err := os.Open(names[len(names)-1])
	if err != nil {
		return disk{}, fmt.Errorf("--data: %w", err)
	}
	defer func() { _ = file.Close() }()
	damaged := func(err error) (disk, error) {
		return disk{}, fmt.Errorf("--data: %s is damaged (%w): delete the content of %s, and the "+
			"member joins anew", file.Name(), err, data)
	}
	decoder := wal.NewDecoder(fileutil.NewFileReader(file))
	for record := (&walpb.Record{}); ; {
		if err := decoder.Decode(record); err != nil {
			return damaged(err)
		}
		switch record.GetType() {
		case wal.CrcType: // what follows is summed from here
			decoder.UpdateCRC(record.GetCrc())
		case wal.MetadataType:
			var owner etcdserverpb.Metadata
			if err := proto.Unmarshal(record.Data, &owner); err != nil {
				return damaged(err)
			}
			return disk{used: true, cluster: types.ID(owner.GetClusterID()),
				member: types.ID(owner.GetNodeID())}, nil
		}
	}
}

// clearDisk deletes a member's data, and nothing else in the folder. They are moved aside first, so
// that a deletion that is cut short leaves no half of them in place.
func clearDisk(data string) error {
	current, old := filepath.Join(data, memberFolder), filepath.Join(data, memberFolder+".old")
	err := os.RemoveAll(old)
	if err == nil {
		err = os.Rename(current, old)
	}
	if err == nil {
		err = os.RemoveAll(old)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--data: %w: the folder must be this process's user's", err)
	}
	return nil
}
