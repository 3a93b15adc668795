package trial

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// State is what a trial tracks: it saves itself into its own folder, and loads itself from there.
//
// Save writes at least one file. A file may have any name. Both are called from the goroutine that reports or tracks.
type State interface {
	Save(folder string) error
	Load(folder string) error
}

// JSON tracks a value that encoding/json writes and reads, through a pointer to it. Floating-point numbers are
// restored exactly.
func JSON(value any) State { return jsonState{value} }

type jsonState struct{ value any }

const jsonFile = "state.json"

func (s jsonState) Save(folder string) error {
	data, err := json.Marshal(s.value)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, jsonFile), data, 0o600)
}

func (s jsonState) Load(folder string) error {
	data, err := os.ReadFile(filepath.Join(folder, jsonFile))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, s.value)
}

// tracked is a state by name.
type tracked struct {
	name  string
	state State
}

// load restores a state from the checkpoint in the folder.
func (t tracked) load(checkpoint string) error {
	folder := filepath.Join(checkpoint, t.name)
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the checkpoint holds %s, but no %q; a trial resumes with the program that it was paused with",
			namesIn(checkpoint), t.name)
	}
	if err := t.state.Load(folder); err != nil {
		return fmt.Errorf("%q cannot be loaded: %w", t.name, err)
	}
	return nil
}

func namesIn(checkpoint string) string {
	entries, err := os.ReadDir(checkpoint)
	if err != nil || len(entries) == 0 {
		return "nothing"
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = fmt.Sprintf("%q", entry.Name())
	}
	return strings.Join(names, ", ")
}

// write creates a checkpoint's folder from the states: it appears complete and durable, or not at all. If the disk is
// full, it waits.
func write(folder string, states []tracked, logger *slog.Logger) error {
	for pause := time.Second; ; pause = min(30*time.Second, 2*pause) {
		err := writeOnce(folder, states)
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
			return err
		}
		logger.Warn("headrace: the disk is full; the trial waits until there is room for its checkpoint", "error", err)
		time.Sleep(pause) // there is no notification when a disk has space again
	}
}

func writeOnce(folder string, states []tracked) (err error) {
	partial := folder + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(partial) // the first error counts
		}
	}()
	for _, one := range states {
		own := filepath.Join(partial, one.name)
		if err := os.MkdirAll(own, 0o700); err != nil {
			return err
		}
		if err := one.state.Save(own); err != nil {
			return fmt.Errorf("%q cannot be saved: %w", one.name, err)
		}
	}
	if err := syncAll(partial); err != nil {
		return err
	}
	if err := os.Rename(partial, folder); err != nil {
		return err
	}
	return syncOne(filepath.Dir(folder))
}

func syncAll(folder string) error {
	return filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncOne(path)
	})
}

func syncOne(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// checkName says why a name cannot be that of a tracked state. The empty name means the checkpoint's own folder, and
// must be the only one.
func checkName(name string, known []tracked) error {
	if name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		return fmt.Errorf("name %q is no name of a folder; give a word such as model", name)
	}
	if slices.ContainsFunc(known, func(one tracked) bool { return one.name == name }) {
		return fmt.Errorf("name %q stands twice; give each state a name of its own", name)
	}
	if len(known) > 0 && (name == "" || known[0].name == "") {
		return errors.New("the empty name is the whole checkpoint; give each of several states a name")
	}
	return nil
}
