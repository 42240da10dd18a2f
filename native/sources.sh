# shellcheck shell=sh disable=SC2034  # what runs a plan and draws, on one thread: for the builds that are no wheel's
core="plan calls kv kv_format ops attend states recurrent experts arena pack unpack memory dispatch prefetch
  sampler sampler_candidates sampler_draw sampler_observe sampler_stages sampler_top_p"
