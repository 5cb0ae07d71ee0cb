// Package checkpoint keeps the state of a training run on storage: named float32 tensors in
// safetensors files, one folder a step, and a manifest that makes the folder a checkpoint.
//
//	runs/opticks/                     the checkpoint folder, a local path or a blob URL
//	    .owner-00000001.json          who writes here (see Owner)
//	    step-00000050/
//	        model.safetensors
//	        optimizer.safetensors
//	        lanes.safetensors
//	        manifest.json             written last: sizes and SHA-256 of the files above
//
// A folder without a manifest is no checkpoint. Manifests of all formats up to FormatVersion are
// read; one of a later format is an error that asks for a newer program, and no damage.
//
// A local checkpoint is written under a temporary name, synced and renamed. A crash at any point
// leaves either the old files or the complete new ones.
//
// One process at a time owns the folder (see Owner). In a bucket, each save writes into its own
// sub-folder of the step's folder (attempt-MARK/model.safetensors), and the second and later owners
// put their number into the names (attempt-2-MARK, manifest-2.json). The manifest records these
// paths and is written last; the one of the latest owner counts. So two writers of one step, one
// of which has been evicted without knowing it, never mix their files. Files of dead writers are
// deleted when the step is removed, or when it is saved again after a day.
//
// Everything is checked as it is read: the manifest against its own SHA-256, each file against the
// manifest, each tensor's shape against its destination. Damage is reported as a *DamageError,
// which names the file.
//
// The package knows neither models nor training. A parameter is a named slice of floats, and the
// job's specification is JSON that is stored unread. The caller chooses the bucket driver
// (Config.OpenBucket). The package imports nothing of this module; of others, gocloud.dev's blob
// and golang.org/x/sys.
package checkpoint
