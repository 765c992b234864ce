#pragma once

// The parts of a look at a node. Each reads files of the kernel and of libraries and writes what it
// found; nothing here changes anything.

#include "orchestrator/facts/json.h"

namespace dsi::facts {

// Processor, memory, who we are.
void look_at_system(Json& json);

// Where libraries are: the loader's cache, and the folders that it searches where there is none.
class Libraries {
 public:
  Libraries();
  // Searched before all others, the first added first.
  void search_first(Str folder) { first_.add(folder); }
  // Whether the loader searches the folder for every program, in an order of its own.
  static bool is_system_folder(Str folder);
  // The path of the library of this name, as the loader finds it; empty: there is none.
  Str find(Str name) const;
  // The same for the first whose name begins so: of a library whose version is in its name.
  Str find_beginning(Str beginning) const;

 private:
  struct Entry {
    Str name;
    Str path;
  };
  List<Entry> entries_;
  List<Str> first_;
};

// The C and C++ libraries with the highest symbol versions that they define, and what ops load.
void look_at_libraries(Json& json, const Libraries& libraries);

// The folder of the prefix and the temporary one: space, mount options, file system.
void look_at_places(Json& json, Str prefix);

// Started first and asked last, because nvidia-smi takes longer than all the rest.
class Gpus {
 public:
  Gpus();
  void write(Json& json);

 private:
  struct Child {
    long pid = -1;
    int out = -1;
    Str text;
    bool ended = false;
    int status = -1;
  };
  static Child start(Str program, std::initializer_list<const char*> words);
  void wait();
  Child query_;
  Child level_;
  bool late_ = false;
};
void look_at_toolkits(Json& json);

// torch, and the packages that ops have to get on with. `hints`: folders of torch to try first.
class Python {
 public:
  Python(const Libraries& libraries, const List<Str>& hints);
  void write(Json& json) const;
  // Has the libraries of torch's environment searched first, as they are in a process that has
  // loaded torch: its own folder; that of a conda environment, which brings a C++ library of its
  // own; those of NVIDIA's packages beside it; LD_LIBRARY_PATH.
  void lead(Libraries& libraries) const;

 private:
  List<Str> folders_;        // Of packages, in the order in which Python searches them.
  bool all_folders_ = true;  // False: the host's Python may know others.
  Str torch_;                // The folder of its libraries; empty: none found.
  Str version_;
  Str cuda_;
};

// What other programs have left in torch's folder of compiled extensions.
void look_at_locks(Json& json);

}  // namespace dsi::facts
