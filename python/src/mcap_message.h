// A message as Python sees it: a light object of its own type, since a file has millions of them.
#pragma once

#include <nanobind/nanobind.h>
#include <robocache/mcap.h>

namespace robocache::python {

// What all messages of a channel share.
struct ChannelObjects {
  nanobind::object channel, topic, schema;
};

// Makes the type and names it in the module: McapMessage.
void bind_mcap_message(nanobind::module_& m);

nanobind::object make_message(const mcap::Message& message, const ChannelObjects& channel);

}  // namespace robocache::python
