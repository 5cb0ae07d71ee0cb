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

// memberFolder is etcd's folder in a data folder. Its log identifies the data.
const memberFolder = "member"

// readDisk identifies the data in a folder. A folder without etcd's log was never used: etcd writes
// its log before it sends anything.
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
		return disk{}, clearDisk(data) // remove the rest of an interrupted start or deletion
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
		case wal.CrcType: // restarts the running checksum
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

// clearDisk deletes a member's data, and nothing else in the folder. It renames them first, so that
// an interrupted deletion leaves no part of them in place.
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
