// Package checkpoint keeps the state of a training run on storage: named float32 tensors in
// safetensors files, one folder a step, and a manifest that makes the folder a checkpoint.
//
//	runs/opticks/                     the checkpoint folder, a local path or a blob URL
//	    step-00000050/
//	        model.safetensors
//	        optimizer.safetensors
//	        lanes.safetensors
//	        manifest.json             written last: sizes and SHA-256 of the files above
//
// A folder without a manifest does not exist. In a local folder a checkpoint is written under a
// temporary name, synced and renamed, so that a crash at any point leaves the old set or the
// complete new one. In a bucket each save puts its files into a folder of its own within the step's
// (attempt-MARK/model.safetensors), and the manifest, which says where they are, switches over. So
// two writers of one step, of which one should not be alive any more, never mix: the last manifest
// or rename decides, and what it names is whole. What dead writers leave goes when the step is
// removed or, a day later, saved again.
//
// Everything read is checked: the manifest against its own SHA-256, every file against the
// manifest, every tensor's shape against the memory it goes to. What is damaged is reported as a
// *DamageError that names the file.
//
// The package knows neither models nor training: a parameter is a named slice of floats here, and
// the job's specification is JSON that it carries unread. It does not choose a bucket's driver
// either (Config.OpenBucket does). It imports nothing of ours; of others, gocloud.dev's blob and
// golang.org/x/sys.
package checkpoint
